"""The api's registrations decide how requests are divided, and nothing waits for them."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest

from inference_store.inference.stored_requests import encoded
from inference_store.platform.settings import CaptureSettings, ProxySettings
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.registrations import (
    RegisteredModel,
    Registrations,
    Registry,
    Work,
)
from inference_store.proxy.configuration import Rules
from inference_store.proxy.protocols import PROTOCOLS, Call, Model
from inference_store.proxy.protocols.tensor_reading import split
from inference_store.proxy.protocols.tensors import Content, Tensor
from tests.exchanges import exchange, png
from tests.http_stub import Request, Response, serve_http
from tests.settings import make_settings

from .captured import write
from .recording import Log, hand_over_one, make_start, wait_until_true

DETECTION = {"model_id": "yolo", "task_type": "Object Detection", "output_mapping": None}
ROWS = {"model_id": "rows", "task_type": None, "output_mapping": {"batched": True}}
KEY = "a-key-that-reads"


def make_events(
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
    registered: Registry = lambda _: None,
    rules: Rules | None = None,
) -> list[dict[str, Any]]:
    preparation = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"), registered)
    call = Call(PROTOCOLS["v2"], "infer", model="yolo")
    sample = exchange(orjson.dumps({"inputs": inputs}), orjson.dumps({"outputs": outputs}))
    chosen = preparation.choose(Work(sample, call, rules or Rules(), "yolo"))
    assert chosen is not None
    return [orjson.loads(message.value) for message in write(chosen).messages]


def make_tensor(datatype: str, data: list[Any], **more: Any) -> dict[str, Any]:
    return {"name": "t", "datatype": datatype, "shape": [len(data)], "data": data, **more}


CODED = base64.b64encode(png() + bytes(300_000)).decode()
IMAGES = [make_tensor("BYTES", [CODED, CODED])]
ANSWERS = [make_tensor("BYTES", ["[]", "[]"])]
PIXELS = [make_tensor("FP32", [1, 2, 3, 4, 5, 6], shape=[2, 3])]
SCORES = [make_tensor("FP32", [0.1, 0.9, 0.8, 0.2], shape=[2, 2])]
DETECTOR = RegisteredModel(task_type="Object Detection")


def test_a_registration_divides_images_in_one_tensor() -> None:
    events = make_events(IMAGES, ANSWERS, lambda _: DETECTOR)
    assert [event["batch_index"] for event in events] == [0, 1]
    assert [event.get("flags") for event in events] == [None, None]
    # the event says what the file says: a registration may be changed, and rebuilt by
    assert [event.get("task_type") for event in events] == [None, None]
    # it is the one of the model's id
    registered = {"7c1": DETECTOR}
    assert len(make_events(IMAGES, ANSWERS, registered.get, Rules(model_id="7c1"))) == 2
    assert len(make_events(IMAGES, ANSWERS, registered.get)) == 1


def test_flags_an_undivided_batch() -> None:
    for inputs, outputs, flags in (
        (IMAGES, ANSWERS, ["batch_not_split"]),
        (PIXELS, SCORES, ["batch_not_split"]),
        (IMAGES[:1] * 2, ANSWERS, ["batch_not_split"]),
        ([make_tensor("FP32", [1], shape=[1, 1, 1])] * 2, ANSWERS, ["batch_not_split"]),
        ([make_tensor("BYTES", [CODED]), make_tensor("FP32", [1])], ANSWERS, None),
        ([make_tensor("BYTES", ["a", "b"])], ANSWERS, None),
        ([make_tensor("BYTES", [CODED])], [make_tensor("BYTES", ["[]"])], None),
        ([make_tensor("FP32", [1, 2])], [make_tensor("FP32", [0.1, 0.9])], None),
        (PIXELS, [make_tensor("FP32", [0.1])], None),
    ):
        (event,) = make_events(inputs, outputs)
        assert event.get("flags") == flags, (inputs, outputs)


FILES = {
    "NITF": b"NITF02.10" + bytes(100),
    "DICOM": bytes(128) + b"DICM" + bytes(100),
    "BigTIFF": b"II+\0\x08\0\0\0" + bytes(100),
    "raw bytes": bytes(range(256)),
    "JPEG": b"\xff\xd8\xff\xe0" + bytes(100),
}


@pytest.mark.parametrize("name", FILES)
def test_flags_files_of_every_kind(name: str) -> None:
    """In one input or an input each, to one answer, as base64, as a URL, or as bytes."""
    coded = base64.b64encode(FILES[name]).decode()
    for text in (coded, f"data:application/octet-stream;base64,{coded}"):
        element = make_tensor("BYTES", [text])
        for inputs in ([make_tensor("BYTES", [text] * 2)], [element, element]):
            (event,) = make_events(inputs, [make_tensor("FP32", [0.1])])
            assert event["flags"] == ["batch_not_split"]
    raw = Tensor(datatype="BYTES", raw=encoded("BYTES", [FILES[name]]))
    two = replace(raw, raw=encoded("BYTES", [FILES[name]] * 2))
    for request in (Content(tensors=[raw, raw]), Content(tensors=[two])):
        assert split(request, Content(tensors=[raw]), Model()).not_split


class Api:
    """A page a model, or always the same body; asked without the key, it refuses."""

    def __init__(self, *models: dict[str, Any], body: bytes | None = None) -> None:
        self.models, self.body = models, body
        self.request_count = 0

    def answer(self, request: Request) -> Response:
        self.request_count += 1
        if request.headers["Authorization"] != f"Bearer {KEY}":
            return Response(401, b"{}")
        at = int(dict(parse_qsl(urlsplit(request.path).query)).get("cursor", 0))
        following = str(at + 1) if at + 1 < len(self.models) else None
        page = {"items": self.models[at : at + 1], "next": following}
        return Response(body=orjson.dumps(page) if self.body is None else self.body)


@asynccontextmanager
async def open_registrations(url: str, path: Path, **changes: Any) -> AsyncIterator[Registrations]:
    options = {"proxy_registry_key": KEY, "proxy_report_seconds": 0.02} | changes
    settings = make_settings(
        CaptureSettings, proxy_registry_url=url, proxy_registry_file=path, **options
    )
    result = Registrations(settings)
    result.open()
    task = asyncio.create_task(result.keep_current())
    try:
        yield result
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_every_page_is_read_and_read_again(tmp_path: Path) -> None:
    api = Api(DETECTION, ROWS)
    with serve_http(api.answer) as url:
        async with open_registrations(url, tmp_path / "models.json") as registrations:
            await wait_until_true(lambda: registrations.of("rows") == RegisteredModel(batched=True))
            assert registrations.of("yolo") == RegisteredModel(task_type="Object Detection")
            assert registrations.of("other") is None
            api.models = (DETECTION,)
            await wait_until_true(lambda: registrations.of("rows") is None)


async def test_a_capture_process_divides_by_its_file_while_the_api_is_away(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_bytes(orjson.dumps({"items": [DETECTION]}))
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_registry_url="http://127.0.0.1:1",
        proxy_registry_key=KEY,
        proxy_registry_file=path,
    )
    log = Log()
    captures = Captures(settings, start=make_start(log.bucket, log, PROTOCOLS))
    await captures.start()
    sample = exchange(orjson.dumps({"inputs": IMAGES}), orjson.dumps({"outputs": ANSWERS}))
    assert hand_over_one(captures, sample, Call(PROTOCOLS["v2"], "infer", model="yolo"))
    try:
        await wait_until_true(lambda: bool(log.events))
    finally:
        await captures.stop(300)
    assert [event["batch_index"] for _, _, event in log.events] == [0, 1]


async def test_while_the_api_is_away_the_file_is_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    with serve_http(Api(DETECTION, ROWS).answer) as url:
        async with open_registrations(url, path):
            await wait_until_true(path.exists)
    async with open_registrations("http://127.0.0.1:1", path) as registrations:
        assert registrations.of("yolo") == RegisteredModel(task_type="Object Detection")
        assert registrations.of("rows") == RegisteredModel(batched=True)
    assert list(tmp_path.iterdir()) == [path]  # noqa: ASYNC240


async def test_a_broken_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    with serve_http(Api(DETECTION).answer) as url:
        for text in (b"", b"{", b"[]", b'{"items": 3}', b'{"items": [1, {}]}'):
            path.write_bytes(text)
            async with open_registrations(url, path) as registrations:
                assert registrations.of("rows") is None
                await wait_until_true(lambda: registrations.of("yolo") is not None)


@pytest.mark.parametrize(
    ("api", "key"),
    [
        pytest.param(Api(DETECTION), "another", id="a key that may not read"),
        pytest.param(Api(body=b"[1]"), KEY, id="no list of models"),
        pytest.param(Api(body=b" " * (33 << 20)), KEY, id="a body that is too large"),
    ],
)
async def test_an_api_that_answers_nonsense_changes_nothing(
    api: Api, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "models.json"
    path.write_bytes(orjson.dumps({"items": [ROWS]}))
    with serve_http(api.answer) as url:
        async with open_registrations(url, path, proxy_registry_key=key) as registrations:
            await wait_until_true(lambda: api.request_count > 1)
            assert registrations.of("rows") == RegisteredModel(batched=True)
