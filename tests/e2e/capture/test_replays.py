"""Stored requests go to another model again: each once, and the answers are compared."""

import asyncio
import base64
import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from tests.e2e.capture.real_line import RealLine, post, read_metadata
from tests.exchanges import png
from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service

WIDTHS = range(1, 21)
FLIPPED, MOVED = {3, 7}, {5}
PLANTED = "planted-4711"


class Detectors:
    """Two models: the second one disagrees about the pictures of some widths. `calls`: the replays
    that reached them, by their header."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        model = request.match_info["path"].split("/")[2]
        if (mark := request.headers.get("inference-store-replay")) is not None:
            self.calls[mark] += 1
        body = json.loads(await request.read())
        tensor = body["inputs"][0]
        width = struct.unpack(">I", base64.b64decode(tensor["data"][0])[16:20])[0]
        changed = model == "faces-2"
        label = "car" if changed and width in FLIPPED else "person"
        at = 100 if changed and width in MOVED else 1
        box = {"xmin": at, "ymin": 2, "xmax": at + 10, "ymax": 22}
        found = [{"label": label, "score": 0.9, **box}]
        output = {"name": tensor["name"], "shape": [1], "datatype": "BYTES", "data": [found]}
        return web.json_response({"model_name": model, "id": body.get("id"), "outputs": [output]})


class Line(RealLine):
    """A proxy, an ingester, an api, and a retention service that is killed."""

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = httpx.request(method, f"{self.api}{path}", json=body, timeout=120)
        assert answer.status_code == status, answer.text
        return answer.json()

    def wait_for(self, replay: Any) -> Any:
        path = f"/models/faces/replays/{replay['id']}"
        wait_until(lambda: self.ask("GET", path)["state"] == "done", seconds=300, what="the replay")
        return self.ask("GET", path)

    def differences(self, replay: Any) -> list[Any]:
        path = f"/models/faces/replays/{replay['id']}/differences?limit=7"
        page = self.ask("GET", path)
        items = list(page["items"])
        while page["next"]:
            page = self.ask("GET", f"{path}&cursor={page['next']}")
            items += page["items"]
        return items


def _call(url: str, model: str, width: int) -> None:
    listed = [{"key": "visitor", "type": "string", "value": PLANTED if width == 3 else "v"}]
    tensor = {
        "name": "image",
        "shape": [1],
        "datatype": "BYTES",
        "data": [base64.b64encode(png(width, 1)).decode()],
        "parameters": {"metadata": json.dumps(listed)},
    }
    post(f"{url}/v2/models/{model}/infer", {"id": f"frame-{width}", "inputs": [tensor]})


async def test_a_killed_replay_sends_each_once_and_finds_the_planted_flips(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    minio_server: S3,
    bucket: str,
    tmp_path: Path,
) -> None:
    environment = service_environment(KAFKA_TOPIC=topic(2), KAFKA_REPORTS_TOPIC=topic())
    detectors = Detectors()
    async with upstream(detectors.answer) as port:
        await asyncio.to_thread(_run, environment, tmp_path, port, detectors)
    client = minio_server.client()
    for item in client.list_objects(bucket, recursive=True, include_version=True):
        content = client.get_object(bucket, item.object_name, version_id=item.version_id).read()
        assert PLANTED.encode() not in content, item.object_name


def _run(environment: dict[str, str], folder: Path, port: int, detectors: Detectors) -> None:
    rules = [{"model": "*", "task_type": "Object Detection"}]
    entry = upstream_entry("one", "v2", url=f"http://127.0.0.1:{port}")
    environment |= {"INFERENCE_STORE_API_PORT": str(api_port := free_port())}
    with Proxy(environment, folder, [entry], rules) as proxy:
        environment |= {"INFERENCE_STORE_REPLAY_PROXY": proxy.url}
        with (
            Service("ingester", environment, folder) as ingester,
            Service("api", environment, folder) as api,
        ):
            for service in (proxy, ingester, api):
                service.wait_ready()
            line = Line({"one": proxy}, f"http://127.0.0.1:{api_port}/v1")
            for width in WIDTHS:
                _call(proxy.url, "faces", width)
            originals = line.captured("faces", len(WIDTHS))
            line.ask("PUT", "/models/faces-2", {"task_type": "Object Detection"}, status=201)
            _replay_beside_kills(environment, folder, line, detectors, originals)


def _replay_beside_kills(
    environment: dict[str, str],
    folder: Path,
    line: Line,
    detectors: Detectors,
    originals: list[dict[str, Any]],
) -> None:
    body = {"to": {"model": "faces-2"}, "rate": 100}
    replay = line.ask("POST", "/models/faces/replays", body, status=202)
    # it dies before the first call, then after the last one and before it has noted any
    retention = Service(
        "retention", environment | {"INFERENCE_STORE_FAILPOINT": "replay.send.noted"}, folder
    )
    with retention:
        for changes in (
            {"FAILPOINT": "replay.send.sent", "REPLAY_WAIT_SECONDS": "1"},
            {"FAILPOINT": None, "REPLAY_WAIT_SECONDS": "300"},
        ):
            wait_until(lambda: not retention.process.running, seconds=300, what="its death")
            retention.kill()
            retention.restart(**changes)
        done = line.wait_for(replay)
        marks = {f"{replay['id']}/{item['uid']}": 1 for item in originals}
        assert detectors.calls == marks
        assert done["counts"]["compared"] == len(WIDTHS)
        summary = done["summary"]
        assert (summary["flips"], summary["disagreeing"]) == (2, 3)
        frames = {item["uid"]: item["inference_id"] for item in originals}
        differences = line.differences(replay)
        order = [frames[item["uid"]] for item in differences]
        assert {*order[:2]} == {"frame-3", "frame-7"}
        assert order[2] == "frame-5"
        assert differences[2]["difference"]["boxes"] == {"matched": 0, "lost": 1, "new": 1}
        assert all(item["disagreement"] == 0 for item in differences[3:])

        [stored] = [
            item for item in line.captured("faces-2", 20) if item["uid"] == differences[0]["to_uid"]
        ]
        metadata = read_metadata(stored)
        assert metadata["replay_of"] == differences[0]["uid"]
        assert metadata["replay"] == replay["id"]
        assert metadata["visitor"] in {PLANTED, "v"}
        same = line.ask(
            "POST", "/models/faces/replays", {"to": {"model": "faces"}, "rate": 100}, status=202
        )
        assert line.wait_for(same)["summary"]["disagreeing"] == 0
        # the caller's id still finds the original alone
        found = line.ask("GET", "/models/faces/inferences/frame-3")
        assert frames[found["uid"]] == "frame-3"

        body = {"inference_ids": ["frame-3"]}
        erasure = line.ask("POST", "/models/faces/erasures", body, status=202)
        path = f"/erasures/{erasure['id']}"
        wait_until(
            lambda: line.ask("GET", path)["finished_at"] is not None,
            seconds=300,
            what="the erasure",
        )
        # the original, and its replay by either model
        assert line.ask("GET", path)["inferences"] == 3
        assert len(line.captured("faces", 2 * len(WIDTHS) - 2)) == 2 * len(WIDTHS) - 2
        assert len(line.captured("faces-2", len(WIDTHS) - 1)) == len(WIDTHS) - 1
        gone = next(uid for uid, name in frames.items() if name == "frame-3")
        assert gone not in {item["uid"] for item in line.differences(replay)}
