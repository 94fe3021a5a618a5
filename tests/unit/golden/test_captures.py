"""The proxy's output for an exchange: object keys, the bytes of blobs, of events, of a spool's
file, of a report. Ids and times that are made on the way are replaced with fixed ones."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from inference_store.inference import producer_reports
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import prepared_capture as spool_file
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared_capture import PreparedCapture
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import Redaction, Rules
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS, recognise_call
from tests.exchanges import exchange
from tests.settings import make_settings
from tests.unit.inference.metadata.samples import make_item
from tests.unit.proxy.protocols.v2_grpc import calls

from .golden import check, format_bytes

AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)
PUBLISHED = "2026-11-22T04:05:07.000007Z"
PRODUCER, REPORTER = "01900000-0000-7000-8000-0000000000aa", "01900000-0000-7000-8000-0000000000bb"
# A JPEG's first bytes: no library packs them.
IMAGE = b"\xff\xd8\xff\xe0 a photograph \xff\xd9"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
METADATA = [make_item("camera", "string", "hall"), make_item("n", "int", "7")]
RULES = Rules(
    project_id="yard",
    task_type="Object Detection",
    metadata_headers=("x-camera",),
    redactions=(Redaction(what="metadata", name="n", how="hash"),),
)


def make_exchange(body: bytes, answer: bytes, /, **changes: Any) -> Exchange:
    times = [AT + timedelta(milliseconds=ms) for ms in (0, 1, 21, 22)]
    names = ("received_at", "forwarded_at", "responded_at", "finished_at")
    return exchange(body, answer, **(dict(zip(names, times, strict=True)) | changes))


def make_v2() -> Exchange:
    """Return a call with a text, metadata, a trace, an id."""
    parameters = {"metadata": METADATA}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["héllo"]}
    body = orjson.dumps({"id": "frame-7", "inputs": [tensor | {"parameters": parameters}]})
    data = [{"label": "cat", "score": 0.9}]
    out = {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": data}
    headers = [("content-type", "application/json"), ("traceparent", TRACE), ("x-camera", "north")]
    return make_exchange(body, orjson.dumps({"outputs": [out]}), request_headers=headers)


def make_v2_batch() -> Exchange:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, 3, 4]}
    out = {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [0.25, 0.75]}
    body, answer = ({"inputs": [tensor], "id": "batch"}, {"outputs": [out], "model_version": "3"})
    return make_exchange(orjson.dumps(body), orjson.dumps(answer))


def make_v2_grpc() -> Exchange:
    request_bytes = calls.make_request(IMAGE, id="g-1").SerializeToString(deterministic=True)
    response_bytes = calls.make_response("cat", id="g-1").SerializeToString(deterministic=True)
    changes = {"transport": "grpc", "path": calls.INFER, "method": calls.INFER, "grpc_code": 0}
    return make_exchange(
        request_bytes,
        response_bytes,
        http_status=None,
        request_headers=[],
        response_headers=[],
        **changes,
    )


def make_chat() -> Exchange:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    body = {"model": "gpt", "messages": messages, "metadata": {"user": "u-1"}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hello"}}
    choice["finish_reason"] = "stop"
    answer = {"id": "chat-1", "choices": [choice], "usage": {"prompt_tokens": 3}}
    path = "/v1/chat/completions"
    return make_exchange(orjson.dumps(body), orjson.dumps(answer), path=path)


def make_failed() -> Exchange:
    """Return a call whose answer is an error, and whose request cannot be read."""
    answer = b'{"error": "no such model"}'
    return make_exchange(
        b"\xffno json", answer, http_status=500, request_headers=[("x-request-id", "r")]
    )


CAPTURES: dict[str, Callable[[], Exchange]] = {
    make.__name__.removeprefix("make_"): make
    for make in (make_v2, make_v2_batch, make_v2_grpc, make_chat, make_failed)
}


def capture_exchange(sample: Exchange) -> PreparedCapture:
    names = PROTOCOLS.keys() - {"raw", "raw-grpc"}
    call = recognise_call(names, sample.transport, sample.method, sample.path)
    assert call is not None
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_key_prefix="captures",
        proxy_redaction_key="k",
    )
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(sample, call, RULES, "detector/é"))
    assert chosen is not None
    return preparation.prepare(chosen, PRODUCER, 7)


def fix_ids(prepared: PreparedCapture, data: bytes) -> bytes:
    """Return bytes with fixed capture ids, and a fixed time of publication, of the same length."""
    for number, message in enumerate(prepared.messages):
        event = orjson.loads(message.value)
        capture_id = f"01900000-0000-7000-8000-{number:012}"
        data = data.replace(event["capture_id"].encode(), capture_id.encode())
        if not event["inference_id"].startswith(("frame", "batch", "g-", "chat", "r")):
            data = data.replace(event["inference_id"].encode(), b"made-here")
        data = data.replace(event["event_published_at"].encode(), PUBLISHED.encode())
    return data


@pytest.mark.parametrize("name", CAPTURES)
def test_capture(name: str) -> None:
    capture = capture_exchange(CAPTURES[name]())
    text = ""
    for blob in capture.blobs:
        key = fix_ids(capture, blob.key.encode()).decode()
        text += format_bytes(f"blob {key} {blob.content_type}", fix_ids(capture, blob.data))
    for message in capture.messages:
        key = fix_ids(capture, message.key).decode()
        text += format_bytes(f"event {key}", fix_ids(capture, message.value))
    check(f"capture_{name}.txt", text)


def test_file_of_a_spool() -> None:
    messages = (spool_file.Message(b"m/1", b'{"model_id":"m"}'),)
    blobs = (spool_file.Blob("a/data", "text/plain", b"hello"),)
    capture = PreparedCapture(producer=PRODUCER, sequence=7, blobs=blobs, messages=messages)
    check("spool_file.txt", format_bytes("file", spool_file.encode(capture)))


def test_report() -> None:
    report = producer_reports.ProducerReport(
        producer=PRODUCER,
        reporter=REPORTER,
        number=3,
        booted_at=AT,
        reported_at=AT + timedelta(seconds=10),
        seen=9,
        sampled_out=1,
        dropped={"no_budget": 2},
        queued=2,
        spooled=1,
        published=4,
        events=6,
        highest_sequence=8,
    )
    check("report.txt", format_bytes(report.producer, producer_reports.encode(report)))


def test_capture_of_a_cut_body() -> None:
    cut = make_exchange(
        b"", b"{}", request=Body(parts=(b'{"inputs": [',), size=10_000, whole=False)
    )
    capture = capture_exchange(cut)
    texts = [format_bytes("event", fix_ids(capture, message.value)) for message in capture.messages]
    check("capture_cut.txt", "".join(texts))
