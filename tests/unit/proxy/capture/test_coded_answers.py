"""Values removed from a request are in no answer that came coded or is written as base64."""

import base64
from typing import Any

import orjson

from inference_store.proxy.capture.removed_values import GAP
from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange

from .captured import JSON, Captured, capture

SECRET = "José Quux"
TEXT: Headers = [("content-type", "text/plain; charset=latin-1")]
ITEMS = [{"key": "user", "type": "string", "value": SECRET}]


def request(**parameters: Any) -> bytes:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hello"]}
    return orjson.dumps({"inputs": [{**tensor, "parameters": parameters}]})


IN_HEADER: Headers = [*JSON, ("x-user", SECRET.encode().decode("latin-1"))]
BY_METADATA = Redaction(what="metadata", name="user")
BY_PATH = Redaction(what="path", name="inputs[].parameters")
# each with a request that holds the secret only at the named position
CASES: list[tuple[Redaction, bytes, Headers]] = [
    (BY_METADATA, request(metadata=ITEMS), JSON),
    (BY_PATH, request(user=SECRET), JSON),
    (Redaction(what="header", name="x-user"), request(), IN_HEADER),
]


def prepare(
    case: tuple[Redaction, bytes, Headers],
    answer: bytes,
    headers: Headers = JSON,
    *,
    protocol: str = "v2",
    **changes: Any,
) -> Captured:
    redaction, body, sent = case
    sample = exchange(body, answer, request_headers=sent, response_headers=headers, **changes)
    captured = capture(sample, Rules(redactions=(redaction,)), protocol=protocol)
    assert not captured.holds(b"Quux"), (case, headers, protocol)
    return captured


def test_an_answer_whose_coding_cannot_be_undone_is_not_kept() -> None:
    answer = b"(\xb5/\xfd" + orjson.dumps({"parameters": {"metadata": ITEMS}})
    for case in CASES:
        for protocol, coding in (("v2", "zstd"), ("v2", "gzip"), ("raw", "br"), ("raw", "gzip")):
            captured = prepare(
                case, answer, [*JSON, ("content-encoding", coding)], protocol=protocol
            )
            assert captured.find_response() is None
            assert captured.documents[0].get("inference_storage_key", "") == ""
            document = captured.find_metadata()["capture"]
            assert "the answer is not kept: its coding cannot be undone" in document["problem"]
            assert document["response_bytes"] == len(answer)


def test_a_coded_answer_that_broke_off_is_not_kept() -> None:
    answer = Body(parts=(b"(\xb5/\xfd Quux",), size=99, whole=False)
    prepare(CASES[0], b"", [("content-encoding", "zstd")], response=answer, protocol="raw")


def test_an_answer_that_is_no_utf8_has_lost_it() -> None:
    for case in CASES:
        for coding in ("latin-1", "utf-16"):
            answer = f"user={SECRET}; voilà".encode(coding)
            captured = prepare(case, answer, TEXT, protocol="raw")
            assert not captured.holds(SECRET.encode("utf-16-le"))
            coded = captured.find_response()["outputs"][0]["data"][0]["b64"]
            assert base64.b64decode(coded).decode(coding) == f"user={GAP}; voilà"


def test_an_error_that_is_not_utf8_does_not_reveal_it() -> None:
    for case in CASES:
        answer = f"no {SECRET}: ö".encode("latin-1")
        (event,) = prepare(case, answer, TEXT, http_status=400).documents
        assert event["error"].startswith("no ")


def test_a_truncated_error_leaves_no_beginning_of_it() -> None:
    value = "Quux-" + "x" * 100
    text = "a" * 4050 + value + " is unknown"
    for protocol in ("v2", "raw"):
        for answer, headers in ((orjson.dumps({"error": text}), JSON), (text.encode(), TEXT)):
            case = (BY_PATH, request(user=value), JSON)
            captured = prepare(case, answer, headers, protocol=protocol, http_status=400)
            assert captured.documents[0]["error"].endswith("a" + GAP + " is unknown")


def test_metadata_in_an_answer_that_is_no_utf8_are_not_kept() -> None:
    """A value too short to be looked for, and under its key."""
    answer = '{"user": "7", "à": 1'.encode("latin-1")
    captured = prepare(CASES[0], answer, TEXT, protocol="raw")
    assert not captured.holds(b'"user": "7"')
    assert captured.find_response() is None


def test_binary_elements_have_lost_it() -> None:
    """One element that is no text makes base64 of all of them."""
    texts = [SECRET.encode(), b"\xff\xfe\xfd"]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    one_output = {"name": "o", "datatype": "BYTES", "shape": [2]}
    head = orjson.dumps({"outputs": [{**one_output, "parameters": {"binary_data_size": len(raw)}}]})
    headers = [*JSON, ("inference-header-content-length", str(len(head)))]
    data = prepare(CASES[1], head + raw, headers).find_response()["outputs"][0]["data"]
    assert [base64.b64decode(datum) for datum in data] == [GAP.encode(), texts[1]]


def test_keeps_nothing_of_a_request_that_cannot_be_decoded() -> None:
    body = b"(\xb5/\xfd" + request(metadata=ITEMS, user=SECRET)
    answer = orjson.dumps({"error": f"cannot read {SECRET}"})
    for redaction in (BY_METADATA, BY_PATH, Redaction(what="input")):
        for coding in ("zstd", "br"):
            case = (redaction, body, [*JSON, ("content-encoding", coding)])
            captured = prepare(case, answer, http_status=400)
            assert captured.data == {}
            assert captured.requests[0]["messages"] is None
