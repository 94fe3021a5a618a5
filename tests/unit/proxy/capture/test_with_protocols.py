"""Captures of the real protocols: what is written can be read, sent again, and holds no secret."""

import base64
import gzip
import random
import struct
from typing import Any, NamedTuple

import orjson
import pytest

from inference_store.proxy.capture.prepare import is_sampled
from inference_store.proxy.configuration import Redaction, Rules, Sampling
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.protocol import Inference
from tests.exchanges import detection, exchange, png, response_body
from tests.unit.inference.metadata.samples import make_item
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange

from .captured import INFER, JSON, Captured, capture

SECRET = "4711-secret"
METADATA = [make_item("user", "string", SECRET), make_item("camera", "string", "hall")]
TEXT = orjson.dumps(METADATA).decode()
IMAGE = png(5, 4)
BASE64 = base64.b64encode(IMAGE).decode()
TENSOR = {"name": "image", "datatype": "BYTES", "shape": [1]}
BY_USER = Redaction(what="metadata", name="user")


def make_v2_body(*, metadata: Any = TEXT, **more: Any) -> bytes:
    tensor = {**TENSOR, "data": [BASE64], "parameters": {"metadata": metadata}}
    return orjson.dumps({**more, "inputs": [tensor]})


def make_answer(**more: Any) -> bytes:
    tensor = {"name": "out", "datatype": "BYTES", "shape": [1], "data": [[detection(0.9)]]}
    return orjson.dumps({"model_name": "m", **more, "outputs": [tensor]})


class Case(NamedTuple):
    path: str
    body: bytes
    headers: Headers
    answer: bytes


V2, CHAT = "/v2/models/m/infer", "/v1/chat/completions"
PREDICT = "/v1/models/m:predict"
RAW = struct.pack("<I", len(IMAGE)) + IMAGE
HEAD = orjson.dumps(
    {"inputs": [TENSOR | {"parameters": {"binary_data_size": len(RAW), "metadata": TEXT}}]}
)
MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "how many cars, please?"}]}
REPLY = {"id": "c-1", "model": "m", "choices": [{"message": {"role": "assistant", "content": "3"}}]}
INSTANCES = orjson.dumps({"instances": [{"image": {"b64": BASE64}}]})
OUTPUT = orjson.dumps({"output": [detection(0.9)]})
BY_HEADER: Headers = [*JSON, ("inference-store-metadata", TEXT)]
GZIP: Headers = [*JSON, ("content-encoding", "gzip")]
SIZED: Headers = [("inference-header-content-length", str(len(HEAD)))]
PARAMETERS: Headers = [
    ("content-type", "image/png"),
    ("chariot-inference-parameters", orjson.dumps({"metadata": TEXT}).decode()),
]
CASES = {
    "v2": Case(V2, make_v2_body(), JSON, make_answer()),
    "v2 object": Case(V2, make_v2_body(metadata=METADATA), JSON, make_answer()),
    "v2 gzipped": Case(V2, gzip.compress(make_v2_body()), GZIP, make_answer()),
    "v2 binary": Case(V2, HEAD + RAW, SIZED, make_answer()),
    "openai": Case(CHAT, orjson.dumps(MESSAGES), BY_HEADER, orjson.dumps(REPLY)),
    "kserve": Case(PREDICT, INSTANCES, BY_HEADER, orjson.dumps({"predictions": [detection(0.9)]})),
    "chariot": Case(
        "/infer", orjson.dumps({"input": BASE64, "parameters": {"metadata": TEXT}}), JSON, OUTPUT
    ),
    "chariot raw": Case("/infer", IMAGE, PARAMETERS, OUTPUT),
}


def prepare(case: Case, rules: Rules | None = None, **options: Any) -> Captured:
    sample = exchange(case.body, case.answer, path=case.path, request_headers=case.headers)
    return capture(sample, rules, proxy_redaction_key="k", **options)


def test_the_body_names_the_model_if_the_path_does_not() -> None:
    for name, expected in (("openai", "m"), ("chariot", "up"), ("v2", "up")):
        (event,) = prepare(CASES[name], model="up").documents
        assert (event["model_id"], event["model_name"]) == (expected, expected)
        (event,) = prepare(CASES[name], Rules(model_id="known"), model="up").documents
        assert event["model_id"] == "known"


def test_applies_every_redaction_if_the_body_does_not_name_the_model() -> None:
    named = Rules(model="m", project_id="known")
    private = Rules(model="private", redactions=(Redaction(what="input"),))
    for case, redacted in (("openai", False), ("chariot", True)):
        captured = prepare(CASES[case], by_name=[private, named], model="up")
        assert (captured.documents[0].get("project_id") is None) == redacted
        assert (captured.data == {}) == redacted


@pytest.mark.parametrize("name", CASES)
def test_the_event_is_read_back_and_the_request_can_be_rebuilt(name: str) -> None:
    captured = prepare(CASES[name], Rules(task_type="object_detection"))
    (event,) = captured.events
    assert event.flags == ()
    assert event.extras.ok
    assert captured.list_entries() == {"user": SECRET, "camera": "hall"}
    if name != "openai":
        assert captured.data == {0: IMAGE}
        assert (event.extras.width, event.extras.height) == (5, 4)
    whole = CASES[name].body
    assert captured.rebuild() == [gzip.decompress(whole) if "gzip" in name else whole]
    assert BASE64[:40].encode() not in captured.list_blobs("metadata")[0]


def test_the_version_is_the_one_that_answered() -> None:
    """A server may ignore the one that is asked for."""
    for answer, version in ((make_answer(model_version="4"), "4"), (make_answer(), "3")):
        asked = CASES["v2"]._replace(path="/v2/models/m/versions/3/infer", answer=answer)
        (event,) = prepare(asked).events
        assert event.extras.model_version == version


@pytest.mark.parametrize("name", CASES)
def test_a_redacted_key_and_a_dropped_input_are_nowhere(name: str) -> None:
    for how in ("drop", "hash"):
        rules = Rules(redactions=(Redaction(what="metadata", name="user", how=how),))
        captured = prepare(CASES[name], rules)
        assert not captured.holds(SECRET.encode())
        entries = captured.list_entries()
        # a body that is no JSON cannot be looked through, and is not kept
        is_kept = name != "chariot raw"
        assert entries.get("camera") == ("hall" if is_kept else None)
        is_hashed = (entries.get("user") or "").startswith("hmac-sha256:")
        assert is_hashed is (how == "hash" and is_kept)
    captured = prepare(CASES[name], Rules(redactions=(Redaction(what="input"),)))
    for secret in (IMAGE, BASE64.encode(), b"how many cars"):
        assert not captured.holds(secret), secret


def test_grpc_is_redacted_in_what_is_read_of_it() -> None:
    header = base64.b64encode(TEXT.encode()).decode()
    headers = [("inference-store-metadata-bin", header)]
    sample = make_grpc_exchange(INFER, [b"\x0a\x01m"], [b"\x0a\x01m"], request_headers=headers)
    captured = capture(sample, Rules(redactions=(BY_USER,)))
    assert not captured.holds(SECRET.encode())
    assert not captured.holds(header.encode())
    assert captured.list_entries() == {"camera": "hall"}


def test_the_headers_metadata_are_every_inferences() -> None:
    batch = Case(PREDICT, b'{"instances": [1, 2]}', BY_HEADER, b'{"predictions": [3, 4]}')
    captured = prepare(batch)
    assert len(captured.documents) == 2
    for event in captured.documents:
        assert "hall" in event["metadata"]


def test_the_bodys_metadata_win_over_the_headers() -> None:
    body = orjson.dumps(MESSAGES | {"metadata": {"camera": "door"}})
    captured = prepare(CASES["openai"]._replace(body=body))
    assert captured.list_entries() == {"user": SECRET, "camera": "door"}


def test_uses_the_protocols_task_type_if_none_is_configured() -> None:
    for configured, expected in ((None, "text_generation"), ("tabular", "tabular")):
        (event,) = prepare(CASES["openai"], Rules(task_type=configured)).documents
        assert event["task_type"] == expected


# Which exchanges are kept.

CHANCE = random.Random(7)


def decide(sampling: Sampling, *, camera: str | None = None, **changes: Any) -> bool:
    envelope = orjson.dumps([{"key": "camera", "type": "string", "value": camera}])
    inference = Inference(
        metadata=() if camera is None else (envelope,), response=changes.pop("response", None)
    )
    arguments: dict[str, Any] = {
        "model_id": "m",
        "task_type": "object_detection",
        "inferences": [inference],
        "standard": {},
        "ok": True,
        "chance": CHANCE.randbytes(16),
    }
    return is_sampled(sampling, **(arguments | changes))


def test_a_share_is_kept() -> None:
    result = sum(decide(Sampling(share=0.3)) for _ in range(2000))
    assert 450 < result < 750
    assert all(decide(Sampling()) for _ in range(100))
    assert not any(decide(Sampling(share=0)) for _ in range(100))


def test_the_same_camera_is_always_in_or_always_out() -> None:
    sampling = Sampling(share=0.5, key="camera")
    first = {str(n): decide(sampling, camera=str(n)) for n in range(200)}
    assert first == {str(n): decide(sampling, camera=str(n)) for n in range(200)}
    assert 60 < sum(first.values()) < 140
    # a larger share has the smaller one in it
    larger = Sampling(share=0.8, key="camera")
    assert all(decide(larger, camera=name) for name, is_in in first.items() if is_in)
    # and another model draws again
    assert first != {n: decide(sampling, camera=n, model_id="other") for n in first}


def test_a_key_may_come_by_a_header() -> None:
    by_header = Sampling(share=0.5, key="x-camera")
    assert len({decide(by_header, standard={"x-camera": "north"}) for _ in range(50)}) == 1
    # without it each is drawn by itself
    assert {decide(by_header) for _ in range(100)} == {True, False}


def test_keeps_errors_if_configured() -> None:
    assert decide(Sampling(share=0, always_errors=True), ok=False)
    assert not decide(Sampling(share=0, always_errors=True), ok=True)
    assert not decide(Sampling(share=0), ok=False)


@pytest.mark.parametrize("task_type", ["object_detection", None])
def test_keeps_low_scores_if_configured(task_type: str | None) -> None:
    sampling = Sampling(share=0, always_below=0.4)
    assert decide(sampling, response=response_body(0.39), task_type=task_type)
    assert not decide(sampling, response=response_body(0.41), task_type=task_type)
    assert not decide(sampling, response=response_body(0.1, 0.9), task_type=task_type)
    assert not decide(sampling, response=b"no json", task_type=task_type)
    assert not decide(sampling, task_type=task_type)
    # beside a number that orjson refuses
    assert decide(sampling, response=b'{"a": NaN, "score": 0.3}', task_type=None)
    assert not decide(sampling, response=b'{"score": NaN}', task_type=None)
