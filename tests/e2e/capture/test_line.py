"""From a client's call to an analyst's answer, with every service and a stub of a detector."""

import asyncio
import base64
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest
from aiohttp import web

from tests.exchanges import png
from tests.integration.proxy.rest_server import upstream
from tests.proxy_process import Proxy
from tests.proxy_process import upstream as upstream_entry
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.waiting import wait_until

from .real_line import RealLine, hash_content, post, read_metadata, run_line

DETECTIONS = (
    {"label": "person", "score": 0.93, "xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22},
    {"label": "car", "score": 0.31, "xmin": 5, "ymin": 5, "xmax": 50, "ymax": 40},
)


async def detector(request: web.Request) -> web.StreamResponse:
    """Answer V2: one output for each input; a model `broken` answers 500."""
    model = request.match_info["path"].split("/")[2]
    if model == "broken":
        return web.json_response({"error": "out of memory"}, status=500)
    request_body = json.loads(await request.read())
    found = {"shape": [len(DETECTIONS)], "datatype": "BYTES", "data": [list(DETECTIONS)]}
    outputs = [{"name": tensor["name"], **found} for tensor in request_body["inputs"]]
    answer = {"model_name": model, "model_version": "3", "outputs": outputs}
    return web.json_response(answer | ({"id": request_body["id"]} if "id" in request_body else {}))


PNG = png(1, 1)


def _make_input(name: str, content: bytes, **metadata: str) -> dict[str, Any]:
    listed = [{"key": key, "type": "int", "value": value} for key, value in metadata.items()]
    return {
        "name": name,
        "shape": [1],
        "datatype": "BYTES",
        "data": [base64.b64encode(content).decode()],
        "parameters": {"metadata": json.dumps(listed), "action": "predict"},
    }


@pytest.mark.real_kafka
async def test_calls_become_answers_and_the_books_close(
    service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
) -> None:
    environment = service_environment(KAFKA_TOPIC=topic(2), KAFKA_REPORTS_TOPIC=topic())
    arrived, released = Event(), Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "/last/" in request.path:
            arrived.set()
            await asyncio.to_thread(released.wait)
        return await detector(request)

    def run() -> None:
        upstreams = {"detector": [upstream_entry("one", "v2", url=f"http://127.0.0.1:{port}")]}
        with run_line(environment, tmp_path, upstreams) as line:
            url = f"{line.proxies['detector'].url}/v2/models"
            _check_one_image(line, url)
            _check_several_images(line, url)
            _check_a_failed_call(line, url)
            _check_the_first_query_of_the_readme(line, url)
            with ThreadPoolExecutor() as pool:
                last = pool.submit(post, f"{url}/last/infer", {"inputs": [_make_input("a", PNG)]})
                try:
                    arrived.wait()
                    _check_capture_hurries_at_the_end(line.proxies["detector"])
                finally:
                    released.set()
                last.result()
            _check_the_books(line)

    async with upstream(answer) as port:
        await asyncio.to_thread(run)


def _check_one_image(line: RealLine, url: str) -> None:
    body = {"id": "frame/7", "inputs": [_make_input("image", PNG, frame_number="9001")]}
    answer = post(f"{url}/faces/infer", body)
    assert answer.json()["outputs"][0]["name"] == "image"
    (item,) = line.captured("faces", 1)
    assert item["inference_id"] == "frame/7"
    assert (item["ok"], item["http_status"], item["protocol"]) == (True, 200, "v2")
    assert (item["width"], item["height"], item["data_size_bytes"]) == (1, 1, len(PNG))
    assert item["data_hash"] == hash_content(PNG)
    assert item["model_version"] == "3"
    assert read_metadata(item)["frame_number"] == "9001"
    # an id of the answer's header finds it, too
    path = f"{line.api}/models/faces/inferences/"
    result = httpx.get(path + answer.headers["inference-store-id"], timeout=300)
    assert result.json()["uid"] == item["uid"]
    assert httpx.get(f"{path}frame%2F7/data", timeout=300).content == PNG


def _check_several_images(line: RealLine, url: str) -> None:
    inputs = [
        _make_input("one", PNG, frame_number="1"),
        _make_input("two", PNG + b"2", frame_number="2"),
    ]
    answer = post(f"{url}/batches/infer", {"id": "batch", "inputs": inputs})
    assert len(answer.json()["outputs"]) == 2
    items = line.captured("batches", 2)
    assert [item["inference_id"] for item in items] == ["batch-0", "batch-1"]
    assert [(item["batch_index"], item["batch_size"]) for item in items] == [(0, 2), (1, 2)]


def _check_a_failed_call(line: RealLine, url: str) -> None:
    body = {"inputs": [_make_input("image", PNG)]}
    answer = httpx.post(f"{url}/broken/infer", json=body, timeout=300)
    assert (answer.status_code, answer.json()) == (500, {"error": "out of memory"})
    (item,) = line.captured("broken", 1)
    assert (item["ok"], item["http_status"], item["error"]) == (False, 500, "out of memory")


def _check_the_first_query_of_the_readme(line: RealLine, url: str) -> None:
    model = f"{line.api}/models/people"
    registered = httpx.put(model, json={"task_type": "Object Detection"}, timeout=300)
    assert registered.status_code in {200, 201}, registered.text
    for number in range(3):
        body = {"inputs": [_make_input("image", PNG, frame_number=str(9000 + number))]}
        post(f"{url}/people/infer", body)
    line.captured("people", 3)
    query = {"filter": "frame_number > 9000 AND prediction(label = 'car' AND score < 0.4)"}
    result = httpx.post(f"{model}/inferences/query", json=query, timeout=300)
    assert len(result.json()["items"]) == 2


def _check_capture_hurries_at_the_end(proxy: Proxy) -> None:
    """It makes way for calls, and no more once there are none to come."""
    serving = psutil.Process(proxy.process.pid)
    assert {child.nice() for child in serving.children()} >= {min(serving.nice() + 10, 19)}
    proxy.process.send_signal(signal.SIGTERM)
    if os.geteuid() == 0:  # others may not raise a priority
        wait_until(
            lambda: {child.nice() - serving.nice() for child in serving.children()} == {0},
            seconds=300,
            what="the capture process to be as quick as serving",
        )


def _check_the_books(line: RealLine) -> None:
    """The proxy ends without a loss; each call, and each inference of it, has been counted."""
    proxy = line.proxies["detector"]
    proxy.stop()
    assert [stopped["lost"] for stopped in proxy.read_log("capture_stopped")] == [0]

    def all_are_counted() -> bool:
        books = line.accounting()
        reports = [report for producer in books["producers"] for report in producer["reports"]]
        counts = [(report["published"], report["events"]) for report in reports]
        return bool(books["closes"]) and counts == [(7, 8)]

    wait_until(all_are_counted, seconds=300, what="the last report")
