"""Values removed from a request are in no answer that came coded or is written as base64."""

import base64
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.json_paths import GONE
from inference_store.proxy.capture.prepare import Preparation
from inference_store.proxy.capture.prepared_capture import PreparedCapture
from inference_store.proxy.capture.removed_values import GAP, RemovedValues
from inference_store.proxy.capture.work import Work
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import recognise_call
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange
from tests.settings import make_settings

SECRET = "José Quux"
JSON: Headers = [("content-type", "application/json")]
TEXT: Headers = [("content-type", "text/plain; charset=latin-1")]
ITEMS = [{"key": "user", "type": "string", "value": SECRET}]


def request(**parameters: Any) -> bytes:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]}
    return orjson.dumps({"inputs": [{**tensor, "parameters": parameters}]})


# each with a request that holds the secret only at the named position
REQUESTS = {
    "metadata": (request(metadata=ITEMS), JSON),
    "path": (request(user=SECRET), JSON),
    "header": (request(), [*JSON, ("x-user", SECRET.encode().decode("latin-1"))]),
}
RULES = {
    "metadata": Redaction(what="metadata", name="user"),
    "path": Redaction(what="path", name="inputs[].parameters"),
    "header": Redaction(what="header", name="x-user"),
}


def prepare(sample: Exchange, rule: Redaction, protocol: str = "v2") -> PreparedCapture:
    call = recognise_call({protocol}, "rest", "POST", sample.path)
    assert call is not None
    preparation = Preparation(make_settings(ProxySettings, proxy_upstream="http://up"))
    chosen = preparation.choose(Work(sample, call, Rules(redactions=(rule,)), "m"))
    assert chosen is not None
    return preparation.prepare(chosen, "p", 1)


def make_exchange(rule: str, answer: bytes, headers: Headers = JSON, **changes: Any) -> Exchange:
    body, sent = REQUESTS[rule]
    sample = exchange(body, answer, path="/v2/models/m/infer", request_headers=sent)
    return replace(sample, response_headers=headers, **changes)


def join_all_bytes(document: PreparedCapture) -> bytes:
    """Join all that is written, and all bytes in it that are written as base64."""
    listed = [blob.data for blob in document.blobs] + [blob.value for blob in document.messages]
    for raw in list(listed):
        waiting = [orjson.loads(raw)] if raw[:1] in b"{[" else []
        while waiting:
            value = waiting.pop()
            if isinstance(value, (dict, list)):
                waiting += value.values() if isinstance(value, dict) else value
            elif isinstance(value, str) and len(value) % 4 == 0 and len(value) > 8:
                try:
                    listed.append(base64.b64decode(value, validate=True))
                except ValueError:
                    waiting += [orjson.loads(value)] if value[:1] in "{[" else []
    return b"\n".join(listed)


def find_response(document: PreparedCapture) -> Any:
    listed = [blob.data for blob in document.blobs if blob.key.endswith("response")]
    return orjson.loads(listed[0]) if listed else None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("protocol", ["v2", "raw"])
@pytest.mark.parametrize("coding", ["zstd", "br", "gzip"])
def test_an_answer_whose_coding_cannot_be_undone_is_not_kept(
    rule: str, protocol: str, coding: str
) -> None:
    answer = b"(\xb5/\xfd" + orjson.dumps({"parameters": {"metadata": ITEMS}})
    sample = make_exchange(rule, answer, [*JSON, ("content-encoding", coding)])
    capture = prepare(sample, RULES[rule], protocol)
    assert b"Quux" not in join_all_bytes(capture)
    assert find_response(capture) is None
    event = orjson.loads(capture.messages[0].value)
    assert event.get("inference_storage_key", "") == ""
    metadata = next(blob.data for blob in capture.blobs if blob.key.endswith("metadata"))
    document = orjson.loads(metadata)["capture"]
    assert "the answer is not kept: its coding cannot be undone" in document["problem"]
    assert document["response_bytes"] == len(answer)


def test_a_coded_answer_that_broke_off_is_not_kept() -> None:
    answer = Body(parts=(b"(\xb5/\xfd Quux",), size=99, whole=False)
    sample = make_exchange("metadata", b"", [("content-encoding", "zstd")], response=answer)
    assert b"Quux" not in join_all_bytes(prepare(sample, RULES["metadata"], "raw"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("coding", ["latin-1", "utf-16"])
def test_an_answer_that_is_no_utf8_has_lost_it(rule: str, coding: str) -> None:
    answer = f"user={SECRET}; voilà".encode(coding)
    document = prepare(make_exchange(rule, answer, TEXT), RULES[rule], "raw")
    assert SECRET.encode("latin-1") not in join_all_bytes(document)
    assert SECRET.encode("utf-16-le") not in join_all_bytes(document)
    coded = find_response(document)["outputs"][0]["data"][0]["b64"]
    assert base64.b64decode(coded).decode(coding) == f"user={GAP}; voilà"


@pytest.mark.parametrize("rule", RULES)
def test_an_error_that_is_not_utf8_does_not_reveal_it(rule: str) -> None:
    document = prepare(
        make_exchange(rule, f"no {SECRET}: ö".encode("latin-1"), TEXT, http_status=400), RULES[rule]
    )
    event = orjson.loads(document.messages[0].value)
    assert event["error"].startswith("no ")
    assert "Quux" not in event["error"]
    assert b"Quux" not in join_all_bytes(document)


@pytest.mark.parametrize("protocol", ["v2", "raw"])
@pytest.mark.parametrize("is_json", [True, False])
def test_a_truncated_error_leaves_no_beginning_of_it(protocol: str, is_json: bool) -> None:
    value = "Quux-" + "x" * 100
    body, sent = request(user=value), JSON
    text = "a" * 4050 + value + " is unknown"
    answer = orjson.dumps({"error": text}) if is_json else text.encode()
    sample = exchange(body, answer, path="/v2/models/m/infer", http_status=400)
    sample = replace(sample, request_headers=sent, response_headers=JSON if is_json else TEXT)
    document = prepare(sample, RULES["path"], protocol)
    event = orjson.loads(document.messages[0].value)
    assert event["error"].endswith("a" + GAP + " is unknown")
    assert b"Quux" not in join_all_bytes(document)


def test_metadata_in_an_answer_that_is_no_utf8_are_not_kept() -> None:
    """A value too short to be looked for, and under its key."""
    answer = '{"user": "7", "à": 1'.encode("latin-1")
    document = prepare(make_exchange("metadata", answer, TEXT), RULES["metadata"], "raw")
    assert b'"user": "7"' not in join_all_bytes(document)
    assert find_response(document) is None


def test_binary_elements_have_lost_it() -> None:
    """One element that is no text makes base64 of all of them."""
    texts = [SECRET.encode(), b"\xff\xfe\xfd"]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    one_output = {"name": "o", "datatype": "BYTES", "shape": [2]}
    head = orjson.dumps({"outputs": [{**one_output, "parameters": {"binary_data_size": len(raw)}}]})
    headers = [*JSON, ("inference-header-content-length", str(len(head)))]
    document = prepare(make_exchange("path", head + raw, headers), RULES["path"])
    assert b"Quux" not in join_all_bytes(document)
    data = find_response(document)["outputs"][0]["data"]
    assert [base64.b64decode(datum) for datum in data] == [GAP.encode(), texts[1]]


@pytest.mark.parametrize("rule", [RULES["metadata"], RULES["path"], Redaction(what="input")])
@pytest.mark.parametrize("coding", ["zstd", "br"])
def test_keeps_nothing_of_a_request_that_cannot_be_decoded(rule: Redaction, coding: str) -> None:
    body = b"(\xb5/\xfd" + request(metadata=ITEMS, user=SECRET)
    headers = [*JSON, ("content-encoding", coding)]
    answer = orjson.dumps({"error": f"cannot read {SECRET}"})
    sample = exchange(
        body, answer, path="/v2/models/m/infer", request_headers=headers, http_status=400
    )
    document = prepare(sample, rule)
    assert b"Quux" not in join_all_bytes(document)
    assert not [blob for blob in document.blobs if blob.key.endswith("/data")]
    metadata = next(blob.data for blob in document.blobs if blob.key.endswith("metadata"))
    assert orjson.loads(metadata)["request"]["messages"] is None


def test_base64_without_it_stays_as_it_came() -> None:
    answer = b'{"b64":  "/////w==", "base64": "hello", "x": "aGVsbG8"}'
    assert answer in [
        blob.data for blob in prepare(make_exchange("path", answer), RULES["path"]).blobs
    ]


@given(st.text(min_size=4, max_size=9), st.binary(max_size=20))
def test_nothing_is_raised_on_any_value(value: str, raw: bytes) -> None:
    removed = RemovedValues()
    removed.note([value], GONE)
    answer = orjson.dumps({"b64": base64.b64encode(raw).decode()})
    result = orjson.loads(removed.answer(answer))
    assert isinstance(next(iter(result.values())), str)
