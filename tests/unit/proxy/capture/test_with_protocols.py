"""Captures of the real protocols: what is written can be read, sent again, and holds no secret."""

import base64
import gzip
import struct
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from inference_store.inference.events import Buckets, decode
from inference_store.inference.metadata import read_metadata
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared_capture import PreparedCapture
from inference_store.proxy.capture.request_remainder import rebuild_messages
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, recognise_call
from inference_store.proxy.rules import NamedRules, Redaction, Rules
from tests.exchanges import detection, exchange, png
from tests.settings import make_settings

SECRET = "4711-secret"
METADATA = [
    {"key": "user", "type": "string", "value": SECRET},
    {"key": "camera", "type": "string", "value": "hall"},
]
TEXT = orjson.dumps(METADATA).decode()
JSON: Headers = [("content-type", "application/json")]
IMAGE = png(5, 4)
BASE64 = base64.b64encode(IMAGE).decode()


def make_v2_body(*, data: Any = BASE64, metadata: Any = TEXT, **more: Any) -> bytes:
    parameters = {"metadata": metadata}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [data]}
    return orjson.dumps({**more, "inputs": [{**tensor, "parameters": parameters}]})


def make_answer(**more: Any) -> bytes:
    tensor = {"name": "out", "datatype": "BYTES", "shape": [1], "data": [[detection(0.9)]]}
    return orjson.dumps({"model_name": "m", **more, "outputs": [tensor]})


def make_binary_body() -> tuple[bytes, Headers]:
    """A request with its tensor behind the JSON."""
    raw = struct.pack("<I", len(IMAGE)) + IMAGE
    parameters = {"binary_data_size": len(raw), "metadata": TEXT}
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": parameters}
    head = orjson.dumps({"inputs": [tensor]})
    return head + raw, [("inference-header-content-length", str(len(head)))]


CHAT = {"model": "m", "messages": [{"role": "user", "content": "how many cars, please?"}]}
CHAT_ANSWER = {
    "id": "c-1",
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "3"}}],
}
BY_HEADER: Headers = [*JSON, ("inference-store-metadata", TEXT)]
CASES: dict[str, tuple[str, bytes, Headers, bytes]] = {
    "v2": ("/v2/models/m/infer", make_v2_body(), JSON, make_answer()),
    "v2 object": ("/v2/models/m/infer", make_v2_body(metadata=METADATA), JSON, make_answer()),
    "v2 copied back": (
        "/v2/models/m/infer",
        make_v2_body(id="7"),
        JSON,
        make_answer(parameters={"metadata": TEXT}),
    ),
    "v2 gzipped": (
        "/v2/models/m/infer",
        gzip.compress(make_v2_body()),
        [*JSON, ("content-encoding", "gzip")],
        make_answer(),
    ),
    "v2 binary": (
        "/v2/models/m/infer",
        make_binary_body()[0],
        make_binary_body()[1],
        make_answer(),
    ),
    "openai": ("/v1/chat/completions", orjson.dumps(CHAT), BY_HEADER, orjson.dumps(CHAT_ANSWER)),
    "kserve": (
        "/v1/models/m:predict",
        orjson.dumps({"instances": [{"image": {"b64": BASE64}}]}),
        BY_HEADER,
        orjson.dumps({"predictions": [detection(0.9)]}),
    ),
    "chariot": (
        "/infer",
        orjson.dumps({"input": BASE64, "parameters": {"metadata": TEXT}}),
        JSON,
        orjson.dumps({"output": [detection(0.9)]}),
    ),
    "chariot raw": (
        "/infer",
        IMAGE,
        [
            ("content-type", "image/png"),
            ("chariot-inference-parameters", orjson.dumps({"metadata": TEXT}).decode()),
        ],
        orjson.dumps({"output": [detection(0.9)]}),
    ),
}


def prepare(case: str, rules: Rules, *, model: str = "m") -> tuple[PreparedCapture, Exchange]:
    path, body, headers, response_bytes = CASES[case]
    sample = exchange(body, response_bytes, path=path, request_headers=headers)
    call = recognise_call(PROTOCOLS.keys() - {"raw", "raw-grpc"}, "rest", "POST", path)
    assert call is not None
    settings = make_settings(ProxySettings, proxy_upstream="http://up", proxy_redaction_key="k")
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(sample, call, rules, model))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1), sample


def find_blob(of: PreparedCapture, kind: str) -> bytes:
    return next(blob.data for blob in of.blobs if blob.key.endswith(f"/{kind}"))


def list_entries(of: PreparedCapture) -> dict[str, str | None]:
    metadata = read_metadata(find_blob(of, "metadata"))
    assert metadata.problem is None
    assert read_metadata(orjson.loads(of.messages[0].value)["metadata"].encode()) == metadata
    return {entry.key: entry.value for entry in metadata.entries if entry.section == "extended"}


@pytest.mark.parametrize(("case", "name"), [("openai", "m"), ("chariot", "up"), ("v2", "up")])
def test_the_body_names_the_model_if_the_path_does_not(case: str, name: str) -> None:
    capture, _ = prepare(case, Rules(), model="up")
    event = orjson.loads(capture.messages[0].value)
    assert (event["model_id"], event["model_name"]) == (name, name)
    capture, _ = prepare(case, Rules(model_id="known"), model="up")
    assert orjson.loads(capture.messages[0].value)["model_id"] == "known"


@pytest.mark.parametrize(("case", "redacted"), [("openai", False), ("chariot", True)])
def test_applies_every_redaction_if_the_body_does_not_name_the_model(
    case: str, redacted: bool
) -> None:
    rules = Rules(
        by_name=(NamedRules("m", None, Rules(project_id="known")),),
        if_unnamed=(Redaction(what="input"),),
    )
    capture, _ = prepare(case, rules, model="up")
    event = orjson.loads(capture.messages[0].value)
    assert (event.get("project_id") is None) == redacted
    assert any(blob.key.endswith("/data") for blob in capture.blobs) != redacted


@pytest.mark.parametrize("case", CASES)
def test_the_event_is_read_back_and_the_request_can_be_rebuilt(case: str) -> None:
    capture, sample = prepare(case, Rules(task_type="object_detection"))
    event = decode(
        capture.messages[0].value, record_time=datetime.now(UTC), buckets=Buckets("b", frozenset())
    )
    assert event.flags == ()
    assert event.extras.ok
    assert list_entries(capture) == {"user": SECRET, "camera": "hall"}
    if case != "openai":
        assert find_blob(capture, "data") == IMAGE
        assert (event.extras.width, event.extras.height) == (5, 4)
    request = orjson.loads(find_blob(capture, "metadata"))["request"]
    (again,) = rebuild_messages(request, {0: find_blob(capture, "data")})
    whole = sample.request.bytes
    assert again == (gzip.decompress(whole) if "gzip" in case else whole)
    assert BASE64[:40].encode() not in find_blob(capture, "metadata")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["drop", "hash"])
def test_a_redacted_key_is_nowhere(case: str, how: Any) -> None:
    capture, _ = prepare(
        case, Rules(redactions=(Redaction(what="metadata", name="user", how=how),))
    )
    written = [blob.data for blob in capture.blobs] + [blob.value for blob in capture.messages]
    assert not [message for message in written if SECRET.encode() in message]
    result = list_entries(capture)
    if case != "chariot raw":  # its body is no JSON: it cannot be looked through, and is not kept
        assert result["camera"] == "hall"
    assert (result.get("user") or "").startswith("hmac-sha256:") is (
        how == "hash" and case != "chariot raw"
    )


@pytest.mark.parametrize("case", CASES)
def test_a_dropped_input_is_nowhere(case: str) -> None:
    capture, _ = prepare(case, Rules(redactions=(Redaction(what="input"),)))
    written = [blob.data for blob in capture.blobs] + [blob.value for blob in capture.messages]
    for secret in (IMAGE, BASE64.encode(), b"how many cars"):
        assert not [message for message in written if secret in message], secret


def test_grpc_is_redacted_in_what_is_read_of_it() -> None:
    header = base64.b64encode(TEXT.encode()).decode()
    sample = exchange(
        transport="grpc",
        method="/inference.GRPCInferenceService/ModelInfer",
        path="/inference.GRPCInferenceService/ModelInfer",
        request_headers=[("inference-store-metadata-bin", header)],
        request=Body(parts=(b"\x0a\x01m",), size=3),
        response=Body(parts=(b"\x0a\x01m",), size=3),
        http_status=None,
        grpc_code=0,
    )
    call = recognise_call(PROTOCOLS, "grpc", sample.method, sample.path)
    assert call is not None
    preparation = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    chosen = preparation.choose(Work(sample, call, rules, "m"))
    assert chosen is not None
    capture = preparation.prepare(chosen, "p", 1)
    written = [blob.data for blob in capture.blobs] + [blob.value for blob in capture.messages]
    assert not [
        message for message in written if SECRET.encode() in message or header.encode() in message
    ]
    assert list_entries(capture) == {"camera": "hall"}
