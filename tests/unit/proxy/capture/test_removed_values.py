"""Values removed from a request are not in its answer."""

import base64
import hmac
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.proxy.capture.capture_builder import ID_HEADER
from inference_store.proxy.capture.removed_values import GAP, GONE, RemovedValues
from inference_store.proxy.configuration import Redaction, Rules
from inference_store.proxy.exchange import Body, Exchange, Headers
from tests.exchanges import exchange
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange
from tests.unit.proxy.protocols.v2_grpc.calls import INFER
from tests.unit.proxy.protocols.v2_grpc.calls import make_request as grpc_request

from .captured import JSON, Captured, capture

SECRET = 'Jos\u00e9 "Pepe" Quux'


def request(text: str = "hello", *, metadata: Any = (), user: Any = None, **more: Any) -> bytes:
    parameters = {"metadata": list(metadata), "user": user}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return orjson.dumps({**more, "inputs": [{**tensor, "parameters": parameters}]})


BY_PATH = Redaction(what="path", name="inputs[].parameters.user")
# each with a request that holds the secret at the named position
REDACTED: dict[str, tuple[Redaction, Exchange]] = {
    "path": (BY_PATH, exchange(request(user=SECRET))),
    "a path to more": (
        Redaction(what="path", name="inputs[].parameters"),
        exchange(request(user={"names": [SECRET]})),
    ),
    "the id": (Redaction(what="path", name="id"), exchange(request(id=SECRET))),
    "metadata": (
        Redaction(what="metadata", name="user"),
        exchange(request(metadata=[{"key": "user", "value": SECRET}])),
    ),
    "header": (
        Redaction(what="header", name="X-User"),
        exchange(request(), request_headers=[("x-user", SECRET)]),
    ),
    "input": (Redaction(what="input"), exchange(request(SECRET))),
}


def make_answer(*outputs: Any, **more: Any) -> bytes:
    tensor = {"name": "out", "datatype": "BYTES", "shape": [1], "data": list(outputs)}
    return orjson.dumps({"model_name": "m", **more, "outputs": [tensor]})


def prepare(sample: Exchange, *redactions: Redaction) -> Captured:
    return capture(sample, Rules(redactions=redactions), proxy_redaction_key="k")


def hash_with_key(value: str) -> str:
    return "hmac-sha256:" + hmac.digest(b"k", value.encode(), "sha256").hex()


ECHOES: dict[str, bytes] = {
    "alone": make_answer(SECRET),
    "in a sentence": make_answer(f"I am {SECRET}, hello"),
    "as a name": make_answer({SECRET: 0.9}),
    "in JSON in a text": make_answer(orjson.dumps({"who": SECRET}).decode()),
    "escaped": make_answer().replace(b"[]", b'["Jos\\u00e9 \\u0022Pepe\\u0022 Quux"]'),
    "as the id": make_answer(1, id=SECRET),
    "as a parameter": make_answer(1, parameters={"user": SECRET}),
    "beside JSON": SECRET.encode() + b" is unknown",
}


@pytest.mark.parametrize("where", REDACTED)
def test_an_answer_does_not_repeat_it(where: str) -> None:
    rule, sample = REDACTED[where]
    for echo, answer in ECHOES.items():
        for how in ("drop", "hash"):
            response = Body(parts=(answer,), size=len(answer))
            echoing = replace(sample, response=response, error=f"no {SECRET}")
            captured = prepare(echoing, rule.model_copy(update={"how": how}))
            assert not captured.holds(SECRET.encode()), (echo, how)
            (event,) = captured.documents
            assert event["error"].startswith("no "), (echo, how)
            assert "Quux" not in event["error"], (echo, how)


def test_a_hash_replaces_the_value() -> None:
    sample = exchange(request(user=SECRET), make_answer(f"I am {SECRET}"))
    response = prepare(sample, BY_PATH.model_copy(update={"how": "hash"})).find_response()
    assert response["outputs"][0]["data"] == [f"I am {hash_with_key(SECRET)}"]


def test_an_answer_without_it_stays_byte_for_byte() -> None:
    for answer in (
        b'{"model_name":  "m", "outputs": [{"name": "x", "data": [1.50, "\\u00e9"]}]}',
        b'{"b64":  "/////w==", "base64": "hello", "x": "aGVsbG8"}',
    ):
        captured = prepare(exchange(request(user=SECRET), answer), BY_PATH)
        assert captured.list_blobs("response") == [answer]


@pytest.mark.parametrize("name", ["x-request-id", "chariot-inference-base-id"])
def test_does_not_use_the_id_of_a_dropped_header(name: str) -> None:
    """Not by the answer's header, either, which repeats it."""
    for secret in ("7", SECRET):
        sample = exchange(
            request(id="r-1"),
            make_answer(1, id=secret),
            request_headers=[(name, secret)],
            response_headers=[(ID_HEADER, secret)],
        )
        (event,) = prepare(sample, Redaction(what="header", name=name)).documents
        assert (event["inference_id"], event.get("aliases")) == ("r-1", None)
        (event,) = prepare(sample, Redaction(what="header", name=name, how="hash")).documents
        assert (event["inference_id"], event["aliases"]) == ("r-1", [hash_with_key(secret)])


def test_over_grpc_the_id_and_the_input_are_not_repeated() -> None:
    message = grpc_request(SECRET.encode(), id=SECRET).SerializeToString()
    sample = make_grpc_exchange(INFER, [message], [], code=3, error=f"no {SECRET}")
    assert not prepare(sample, Redaction(what="path", name="id")).holds(SECRET.encode())


def test_a_request_that_cannot_be_read_is_not_quoted_by_its_failure() -> None:
    answer = orjson.dumps({"error": f"invalid JSON near {SECRET}"})
    body = request(user=SECRET) + b"}"
    captured = prepare(exchange(body, answer, http_status=400), BY_PATH)
    assert not captured.holds(SECRET.encode())
    assert "not kept" in captured.documents[0]["error"]
    assert prepare(exchange(body, make_answer(1)), BY_PATH).find_response()


def test_a_value_inside_another_leaves_nothing_of_it() -> None:
    removed = RemovedValues()
    removed.note(["abcd", {"a": "abcdefgh"}, 4711001], GONE)
    assert removed.replace_in_text("abcdefgh abcd 4711001") == " ".join([GAP] * 3)
    assert removed.answer(b'{"n": 4711001, "m": 47110010}') == b'{"n": "[redacted]", "m": 47110010}'


def test_removes_short_texts_and_numbers_only_as_ids() -> None:
    removed = RemovedValues()
    removed.note(["cat", 12345, 0.5, True, None], GONE)
    assert removed.answer(b'["cat", 12345]') == b'["cat", 12345]'
    assert (removed.name("cat"), removed.name("cats")) == (None, "cats")


@given(
    st.binary(max_size=80)
    | st.text(max_size=40).map(lambda text: orjson.dumps([text]))
    | st.from_regex(rb'\A\{"b64": "([A-Za-z0-9+/]{4}){0,6}"\}\Z')
)
def test_nothing_is_raised_on_any_answer(raw: bytes) -> None:
    removed = RemovedValues()
    removed.note(["aaaa", "\ud800bbbb"], GONE)
    result = removed.answer(raw)
    assert result == raw or GAP.encode() in result or orjson.loads(result).keys() == {"b64"}


def answer_with(where: str, answer: bytes, headers: Headers = JSON, **changes: Any) -> Captured:
    """Capture an answer to a request whose secret is taken out."""
    rule, sample = REDACTED[where]
    protocol = changes.pop("protocol", "v2")
    response = Body(parts=(answer,), size=len(answer))
    echoing = replace(sample, response=response, response_headers=headers, **changes)
    captured = capture(echoing, Rules(redactions=(rule,)), protocol=protocol)
    assert not captured.holds(b"Quux"), (where, headers, protocol)
    return captured


TEXT: Headers = [("content-type", "text/plain; charset=latin-1")]
CODED = ("a path to more", "metadata", "header")
CODINGS = (("v2", "zstd"), ("v2", "gzip"), ("raw", "br"), ("raw", "gzip"))


def test_an_answer_whose_coding_cannot_be_undone_is_not_kept() -> None:
    answer = b"(\xb5/\xfd" + orjson.dumps({"parameters": {"user": SECRET}})
    for where in CODED:
        for protocol, coding in CODINGS:
            headers = [*JSON, ("content-encoding", coding)]
            captured = answer_with(where, answer, headers, protocol=protocol)
            assert captured.find_response() is None
            assert captured.documents[0].get("inference_storage_key", "") == ""
            document = captured.find_metadata()["capture"]
            assert "the answer is not kept: its coding cannot be undone" in document["problem"]
            assert document["response_bytes"] == len(answer)


def test_an_answer_or_error_that_is_no_utf8_has_lost_it() -> None:
    for where in CODED:
        for coding in ("latin-1", "utf-16"):
            answer = f"user={SECRET}; voil\u00e0".encode(coding)
            captured = answer_with(where, answer, TEXT, protocol="raw")
            assert not captured.holds(SECRET.encode("utf-16-le"))
            coded = captured.find_response()["outputs"][0]["data"][0]["b64"]
            assert base64.b64decode(coded).decode(coding) == f"user={GAP}; voil\u00e0"
        answer = f"no {SECRET}: \u00f6".encode("latin-1")
        (event,) = answer_with(where, answer, TEXT, http_status=400).documents
        assert event["error"].startswith("no ")


def test_a_truncated_error_leaves_no_beginning_of_it() -> None:
    value = "Quux-" + "x" * 100
    text = "a" * 4050 + value + " is unknown"
    for answer, headers in ((orjson.dumps({"error": text}), JSON), (text.encode(), TEXT)):
        sample = exchange(request(user=value), answer, response_headers=headers, http_status=400)
        for protocol in ("v2", "raw"):
            (event,) = capture(sample, Rules(redactions=(BY_PATH,)), protocol=protocol).documents
            assert event["error"].endswith("a" + GAP + " is unknown")


def test_metadata_in_an_answer_that_is_no_utf8_are_not_kept() -> None:
    """A value too short to be looked for, and under its key."""
    answer = '{"user": "7", "\u00e0": 1'.encode("latin-1")
    captured = answer_with("metadata", answer, TEXT, protocol="raw")
    assert not captured.holds(b'"user": "7"')
    assert captured.find_response() is None


def test_binary_elements_have_lost_it() -> None:
    texts = [SECRET.encode(), b"\xff\xfe\xfd"]
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    one_output = {"name": "o", "datatype": "BYTES", "shape": [2]}
    head = orjson.dumps({"outputs": [{**one_output, "parameters": {"binary_data_size": len(raw)}}]})
    headers = [*JSON, ("inference-header-content-length", str(len(head)))]
    captured = answer_with("a path to more", head + raw, headers)
    data = captured.find_response()["outputs"][0]["data"]
    assert data == [GAP, {"b64": base64.b64encode(texts[1]).decode()}]


def test_keeps_nothing_of_a_request_that_cannot_be_decoded() -> None:
    body = b"(\xb5/\xfd" + request(user=SECRET, metadata=[{"key": "user", "value": SECRET}])
    answer = orjson.dumps({"error": f"cannot read {SECRET}"})
    for rule in (REDACTED["metadata"][0], BY_PATH, Redaction(what="input")):
        for coding in ("zstd", "br"):
            coded = [*JSON, ("content-encoding", coding)]
            captured = prepare(exchange(body, answer, request_headers=coded, http_status=400), rule)
            assert not captured.holds(b"Quux"), (rule, coding)
            assert captured.data == {}
            assert captured.requests[0]["messages"] is None
