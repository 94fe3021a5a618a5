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
from inference_store.proxy.capture.kept_request import rebuilt
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared import Prepared
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, recognised
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


def v2(*, data: Any = BASE64, metadata: Any = TEXT, **more: Any) -> bytes:
    parameters = {"metadata": metadata}
    one = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [data]}
    return orjson.dumps({**more, "inputs": [{**one, "parameters": parameters}]})


def answer(**more: Any) -> bytes:
    one = {"name": "out", "datatype": "BYTES", "shape": [1], "data": [[detection(0.9)]]}
    return orjson.dumps({"model_name": "m", **more, "outputs": [one]})


def binary() -> tuple[bytes, Headers]:
    """A request with its tensor behind the JSON."""
    raw = struct.pack("<I", len(IMAGE)) + IMAGE
    parameters = {"binary_data_size": len(raw), "metadata": TEXT}
    one = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": parameters}
    head = orjson.dumps({"inputs": [one]})
    return head + raw, [("inference-header-content-length", str(len(head)))]


CHAT = {"model": "m", "messages": [{"role": "user", "content": "how many cars, please?"}]}
SAID = {"id": "c-1", "model": "m", "choices": [{"message": {"role": "assistant", "content": "3"}}]}
BY_HEADER: Headers = [*JSON, ("inference-store-metadata", TEXT)]
CASES: dict[str, tuple[str, bytes, Headers, bytes]] = {
    "v2": ("/v2/models/m/infer", v2(), JSON, answer()),
    "v2 object": ("/v2/models/m/infer", v2(metadata=METADATA), JSON, answer()),
    "v2 copied back": (
        "/v2/models/m/infer",
        v2(id="7"),
        JSON,
        answer(parameters={"metadata": TEXT}),
    ),
    "v2 gzipped": (
        "/v2/models/m/infer",
        gzip.compress(v2()),
        [*JSON, ("content-encoding", "gzip")],
        answer(),
    ),
    "v2 binary": ("/v2/models/m/infer", binary()[0], binary()[1], answer()),
    "openai": ("/v1/chat/completions", orjson.dumps(CHAT), BY_HEADER, orjson.dumps(SAID)),
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


def prepared(case: str, rules: Rules, *, model: str = "m") -> tuple[Prepared, Exchange]:
    path, body, headers, said = CASES[case]
    made = exchange(body, said, path=path, request_headers=headers)
    call = recognised(PROTOCOLS.keys() - {"raw", "raw-grpc"}, "rest", "POST", path)
    assert call is not None
    settings = make_settings(ProxySettings, proxy_upstream="http://up", proxy_redaction_key="k")
    preparation = Preparation(settings)
    chosen = preparation.choose(Work(made, call, rules, model))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1), made


def blob(of: Prepared, kind: str) -> bytes:
    return next(each.data for each in of.blobs if each.key.endswith(f"/{kind}"))


def entries(of: Prepared) -> dict[str, str | None]:
    found = read_metadata(blob(of, "metadata"))
    assert found.problem is None
    assert read_metadata(orjson.loads(of.messages[0].value)["metadata"].encode()) == found
    return {each.key: each.value for each in found.entries if each.section == "extended"}


@pytest.mark.parametrize(("case", "name"), [("openai", "m"), ("chariot", "up"), ("v2", "up")])
def test_the_body_names_the_model_where_no_path_does(case: str, name: str) -> None:
    one, _ = prepared(case, Rules(), model="up")
    event = orjson.loads(one.messages[0].value)
    assert (event["model_id"], event["model_name"]) == (name, name)
    one, _ = prepared(case, Rules(model_id="known"), model="up")
    assert orjson.loads(one.messages[0].value)["model_id"] == "known"


@pytest.mark.parametrize(("case", "redacted"), [("openai", False), ("chariot", True)])
def test_where_the_body_does_not_name_the_model_all_is_taken_out_that_any_rules_ask_for(
    case: str, redacted: bool
) -> None:
    rules = Rules(
        by_name=(NamedRules("m", None, Rules(project_id="known")),),
        if_unnamed=(Redaction(what="input"),),
    )
    one, _ = prepared(case, rules, model="up")
    event = orjson.loads(one.messages[0].value)
    assert (event.get("project_id") is None) == redacted
    assert any(each.key.endswith("/data") for each in one.blobs) != redacted


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_and_the_request_can_be_sent_again(case: str) -> None:
    one, made = prepared(case, Rules(task_type="object_detection"))
    event = decode(
        one.messages[0].value, record_time=datetime.now(UTC), buckets=Buckets("b", frozenset())
    )
    assert event.flags == ()
    assert event.extras.ok
    assert entries(one) == {"user": SECRET, "camera": "hall"}
    if case != "openai":
        assert blob(one, "data") == IMAGE
        assert (event.extras.width, event.extras.height) == (5, 4)
    request = orjson.loads(blob(one, "metadata"))["request"]
    (again,) = rebuilt(request, {0: blob(one, "data")})
    whole = made.request.bytes
    assert again == (gzip.decompress(whole) if "gzip" in case else whole)
    assert BASE64[:40].encode() not in blob(one, "metadata")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["drop", "hash"])
def test_a_redacted_key_is_nowhere(case: str, how: Any) -> None:
    one, _ = prepared(case, Rules(redactions=(Redaction(what="metadata", name="user", how=how),)))
    written = [each.data for each in one.blobs] + [each.value for each in one.messages]
    assert not [each for each in written if SECRET.encode() in each]
    found = entries(one)
    if case != "chariot raw":  # its body is no JSON: it cannot be looked through, and is not kept
        assert found["camera"] == "hall"
    assert (found.get("user") or "").startswith("hmac-sha256:") is (
        how == "hash" and case != "chariot raw"
    )


@pytest.mark.parametrize("case", CASES)
def test_a_dropped_input_is_nowhere(case: str) -> None:
    one, _ = prepared(case, Rules(redactions=(Redaction(what="input"),)))
    written = [each.data for each in one.blobs] + [each.value for each in one.messages]
    for secret in (IMAGE, BASE64.encode(), b"how many cars"):
        assert not [each for each in written if secret in each], secret


def test_grpc_is_redacted_in_what_is_read_of_it() -> None:
    header = base64.b64encode(TEXT.encode()).decode()
    made = exchange(
        transport="grpc",
        method="/inference.GRPCInferenceService/ModelInfer",
        path="/inference.GRPCInferenceService/ModelInfer",
        request_headers=[("inference-store-metadata-bin", header)],
        request=Body(parts=(b"\x0a\x01m",), size=3),
        response=Body(parts=(b"\x0a\x01m",), size=3),
        http_status=None,
        grpc_code=0,
    )
    call = recognised(PROTOCOLS, "grpc", made.method, made.path)
    assert call is not None
    preparation = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
    rules = Rules(redactions=(Redaction(what="metadata", name="user"),))
    chosen = preparation.choose(Work(made, call, rules, "m"))
    assert chosen is not None
    one = preparation.prepare(chosen, "p", 1)
    written = [each.data for each in one.blobs] + [each.value for each in one.messages]
    assert not [each for each in written if SECRET.encode() in each or header.encode() in each]
    assert entries(one) == {"camera": "hall"}
