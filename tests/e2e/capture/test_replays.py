"""Stored requests go to another model again: each once, and the answers are compared."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from inference_store_client import Store
from tests.changed_detector import CHANGED, MODEL, ChangedDetector, call, call_grpc
from tests.exchanges import png
from tests.http_stub import serve_http
from tests.integration.client.istore import Istore
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.waiting import wait_until
from tests.service_process import Service

from .real_line import RealLine, read_metadata

NUMBERS = range(1, 21)
PLANTED = "planted-4711"
REPLAY_FAILPOINTS = tuple(
    f"replay.send.{moment}" for moment in ("before", "noted", "sent", "after")
)
"""Where the retention service is killed."""


class Line(RealLine):
    """A proxy, an ingester, an api, and replays."""

    def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        answer = httpx.request(method, f"{self.api}{path}", json=body, timeout=120)
        assert answer.status_code == status, answer.text
        return answer.json()

    def replay(self, to: str) -> Any:
        body = {"to": {"model": to}, "rate": 100}
        return self.ask("POST", f"/models/{MODEL}/replays", body, status=202)

    def wait_for(self, path: str, **members: Any) -> Any:
        """Wait until an answer has these members; return it."""
        found: list[Any] = []

        def is_there() -> bool:
            found[:] = [self.ask("GET", path)]
            return bool(members.items() <= found[0].items())

        wait_until(is_there, seconds=300, what=f"{members} of {path}")
        return found[0]

    def list_differences(self, path: str) -> list[Any]:
        page = self.ask("GET", f"{path}/differences?limit=7")
        items = list(page["items"])
        while page["next"]:
            page = self.ask("GET", f"{path}/differences?limit=7&cursor={page['next']}")
            items += page["items"]
        return items


def test_a_killed_replay_sends_each_once_and_is_erased_with_what_it_repeats(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    minio_server: S3,
    bucket: str,
    tmp_path: Path,
) -> None:
    environment = service_environment(
        KAFKA_TOPIC=topic(2), KAFKA_REPORTS_TOPIC=topic(), API_PORT=str(api_port := free_port())
    )
    detector = ChangedDetector()
    rules = [{"model": "*", "task_type": "Object Detection"}]
    with serve_http(detector.answer) as url, detector.serve_grpc() as address:
        entry = upstream_entry("one", "v2", "v2-grpc", url=url, grpc=address)
        with Proxy(environment, tmp_path, [entry], rules) as proxy:
            environment |= {
                "INFERENCE_STORE_REPLAY_PROXY": proxy.url,
                "INFERENCE_STORE_REPLAY_PROXY_GRPC_PORT": proxy.grpc.rpartition(":")[2],
            }
            with (
                Service("ingester", environment, tmp_path) as ingester,
                Service("api", environment, tmp_path) as api,
            ):
                for service in (proxy, ingester, api):
                    service.wait_ready()
                line = Line({"one": proxy}, f"http://127.0.0.1:{api_port}/v1")
                for number in NUMBERS:
                    value = PLANTED if number == 3 else "v"
                    metadata = [{"key": "visitor", "type": "string", "value": value}]
                    if number % 2:
                        call_grpc(proxy.grpc, number, png(number, 1), metadata)
                    else:
                        call(proxy.url, number, png(number, 1), metadata)
                originals = line.captured(MODEL, len(NUMBERS))
                line.ask("PUT", f"/models/{CHANGED}", {"task_type": "Object Detection"}, status=201)
                _replay_beside_kills(environment, tmp_path, line, detector, originals)
    client = minio_server.client()
    for item in client.list_objects(bucket, recursive=True, include_version=True):
        content = client.get_object(bucket, item.object_name, version_id=item.version_id).read()
        assert PLANTED.encode() not in content, item.object_name


def _replay_by_the_client(line: Line, home: Path) -> None:
    address, seen = line.api.removesuffix("/v1"), list[str]()
    with Store(address, "-") as store:
        asked = store.model(MODEL).replay("inference_id = 'frame-8'", to=CHANGED, rate=100)
        done = asked.wait(progress=lambda replay: seen.append(replay.state))
        [item] = done.differences()
        assert item.difference is not None
        assert item.difference["label"]["flipped"]
        assert not [*done.differences("skipped", "missing")]
    assert {*seen} <= {"pending", "listing", "sending"}
    words = ("replay", MODEL, "--to", CHANGED, "--filter", "inference_id IN ('frame-5', 'frame-6')")
    ran = asyncio.run(Istore(address, home).run(*words))
    assert ran.returncode == 0, ran.stderr
    assert "1 of 2 disagree; 0 labels flipped" in ran.stderr
    assert json.loads(ran.stdout)["boxes_lost"] == 1


def _die(retention: Service, **changes: str | None) -> None:
    """Wait until it is killed, and start it again."""
    wait_until(lambda: not retention.process.running, seconds=300, what="its death")
    retention.kill()
    retention.restart(**changes)


def _replay_beside_kills(
    environment: Mapping[str, str],
    folder: Path,
    line: Line,
    detector: ChangedDetector,
    originals: Sequence[Mapping[str, Any]],
) -> None:
    replay = line.replay(CHANGED)
    path = f"/models/{MODEL}/replays/{replay['id']}"
    before, noted, sent, after = REPLAY_FAILPOINTS
    failing = {**environment, "INFERENCE_STORE_FAILPOINT": before}
    with Service("retention", failing, folder) as retention:
        # it dies before the first call, twice, then after the last one, before it has noted any
        _die(retention, FAILPOINT=noted)
        _die(retention, FAILPOINT=sent, REPLAY_WAIT_SECONDS="1")
        _die(retention, FAILPOINT=None, REPLAY_WAIT_SECONDS="300")
        summary = line.wait_for(path, state="done")["summary"]
        assert detector.replays == {f"{replay['id']}/{item['uid']}": 1 for item in originals}
        assert (summary["flips"], summary["disagreeing"]) == (2, 3)
        frames = {item["uid"]: item["inference_id"] for item in originals}
        differences = line.list_differences(path)
        assert len(differences) == len(NUMBERS)
        order = [frames[item["uid"]] for item in differences]
        assert {*order[:2]} == {"frame-3", "frame-8"}
        assert order[2] == "frame-5"
        assert differences[2]["difference"]["boxes"] == {"matched": 0, "lost": 1, "new": 1}
        assert all(item["disagreement"] == 0 for item in differences[3:])

        replays = {item["uid"]: item for item in line.captured(CHANGED, len(NUMBERS))}
        first = differences[0]
        metadata = read_metadata(replays[first["to_uid"]])
        assert (metadata["replay_of"], metadata["replay"]) == (first["uid"], replay["id"])
        retention.stop()
        retention.restart(FAILPOINT=after)
        same = f"/models/{MODEL}/replays/{line.replay(MODEL)['id']}"
        _die(retention, FAILPOINT=None)
        assert line.wait_for(same, state="done")["summary"]["disagreeing"] == 0
        codes = {frames[it["uid"]]: it["grpc_code"] for it in line.list_differences(same)}
        assert codes == {f"frame-{n}": 0 if n % 2 else None for n in NUMBERS}
        _replay_by_the_client(line, folder)
        assert max(detector.replays.values()) == 1
        # the caller's id still finds the original alone
        found = line.ask("GET", f"/models/{MODEL}/inferences/frame-3")
        assert frames[found["uid"]] == "frame-3"

        body = {"inference_ids": ["frame-3"]}
        erasure = line.ask("POST", f"/models/{MODEL}/erasures", body, status=202)
        # the original, and its replay by either model
        line.wait_for(f"/erasures/{erasure['id']}", inferences=3, error=None)
        line.captured(MODEL, 2 * len(NUMBERS) - 2)
        line.captured(CHANGED, len(NUMBERS) + 2)
        left = {frames[item["uid"]] for item in line.list_differences(path)}
        assert left == {*frames.values()} - {"frame-3"}
