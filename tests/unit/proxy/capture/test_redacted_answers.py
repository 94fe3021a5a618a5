"""An answer does not hold what a rule names, in the places where a model server repeats it."""

import base64
import hmac
from dataclasses import replace
from typing import Any

import orjson
import pytest

from inference_store.proxy.capture.prepare import ID_HEADER
from inference_store.proxy.configuration import Redaction, Rules
from inference_store.proxy.exchange import Body, Exchange, Headers
from tests.exchanges import exchange
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange
from tests.unit.proxy.protocols.v2_grpc.calls import INFER
from tests.unit.proxy.protocols.v2_grpc.calls import make_request as grpc_request
from tests.unit.proxy.protocols.v2_grpc.calls import make_response as grpc_response

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
    "path": orjson.dumps({"outputs": [{"name": "o", "data": [1], "parameters": {"user": SECRET}}]}),
    "a path to more": orjson.dumps({"outputs": [{"data": [1], "parameters": {"a": [SECRET]}}]}),
    "the id": make_answer(1, id=SECRET),
    "metadata": make_answer(1, parameters={"metadata": [{"key": "user", "value": SECRET}]}),
}


@pytest.mark.parametrize("where", ECHOES)
def test_an_answer_does_not_repeat_it_in_the_same_place(where: str) -> None:
    rule, sample = REDACTED[where]
    answer = ECHOES[where]
    for how in ("drop", "hash"):
        echoing = replace(sample, response=Body(parts=(answer,), size=len(answer)))
        captured = prepare(echoing, rule.model_copy(update={"how": how}))
        assert not captured.holds(SECRET.encode()), how
        assert captured.find_response()["outputs"][0]["data"] == [1]


def test_a_path_into_the_input_takes_no_result_along() -> None:
    answer = orjson.dumps({"outputs": [{"name": "o", "shape": [1], "data": [7]}], "text": "x"})
    for name in ("inputs[].data", "inputs", "text"):
        captured = prepare(exchange(request(SECRET), answer), Redaction(what="path", name=name))
        assert captured.list_blobs("response") == [answer], name


def test_free_text_of_an_answer_is_not_searched() -> None:
    text = f"I am {SECRET}"
    for rule, sample in REDACTED.values():
        answer = make_answer(text)
        captured = prepare(replace(sample, response=Body(parts=(answer,), size=len(answer))), rule)
        assert captured.find_response()["outputs"][0]["data"] == [text]


def test_a_hash_replaces_the_value() -> None:
    sample = exchange(request(user=SECRET), ECHOES["path"])
    response = prepare(sample, BY_PATH.model_copy(update={"how": "hash"})).find_response()
    assert response["outputs"][0]["parameters"] == {"user": hash_with_key(SECRET)}


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
    answer = grpc_response(id=SECRET).SerializeToString()
    sample = make_grpc_exchange(INFER, [message], [answer])
    assert not prepare(sample, Redaction(what="path", name="id")).holds(SECRET.encode())


def answer_with(where: str, answer: bytes, headers: Headers = JSON, **changes: Any) -> Captured:
    """Capture an answer to a request whose secret is taken out."""
    rule, sample = REDACTED[where]
    protocol = changes.pop("protocol", "v2")
    response = Body(parts=(answer,), size=len(answer))
    echoing = replace(sample, response=response, response_headers=headers, **changes)
    captured = capture(echoing, Rules(redactions=(rule,)), protocol=protocol)
    assert not captured.holds(b"Quux"), (where, headers, protocol)
    return captured


CODED = ("a path to more", "metadata")
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
            assert "not kept" in document["problem"]
            assert document["response_bytes"] == len(answer)


def test_keeps_nothing_of_a_request_that_cannot_be_decoded() -> None:
    body = b"(\xb5/\xfd" + request(user=SECRET, metadata=[{"key": "user", "value": SECRET}])
    answer = orjson.dumps({"error": f"cannot read {SECRET}"})
    for rule in (REDACTED["metadata"][0], BY_PATH):
        for coding in ("zstd", "br"):
            coded = [*JSON, ("content-encoding", coding)]
            captured = prepare(exchange(body, answer, request_headers=coded, http_status=400), rule)
            assert not captured.holds(b"Quux"), (rule, coding)
            assert captured.data == {}
            assert captured.prepared.problems == ("request_unreadable",)
            assert captured.requests[0]["messages"] is None
            assert "not kept" in captured.documents[0]["error"]


PLAIN = "Quux-secret"
USER = orjson.dumps({"parameters": {"user": PLAIN}})
EVENTS = [("content-type", "text/event-stream")]
# answers that should be JSON and are not
ODD_ANSWERS: dict[str, tuple[str, Headers, bytes]] = {
    "cut off": ("/v2/models/m/infer", JSON, USER[:-1]),
    "lines": ("/v1/chat/completions", JSON, USER + b"\n" + USER),
    "chunks": ("/v1/chat/completions", EVENTS, b"data: " + USER[:-1] + b"\n\n"),
    "events": ("/v1/models/m:predict", EVENTS, b"data: " + USER + b"\n\n"),
    "UTF-16": ("/v2/models/m/infer", JSON, USER.decode().encode("utf-16-le")),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_answer_that_cannot_be_read_is_not_kept(name: str) -> None:
    path, headers, answer = ODD_ANSWERS[name]
    body = orjson.dumps({"inputs": [], "instances": [1], "parameters": {"user": PLAIN}})
    sample = exchange(body, answer, path=path, response_headers=headers)
    captured = prepare(sample, Redaction(what="path", name="parameters.user"))
    assert not captured.holds(PLAIN.encode())
    assert not captured.holds(base64.b64encode(answer))


def test_an_answer_of_openai_does_not_repeat_the_id() -> None:
    messages = [{"role": "user", "content": "how many?"}]
    body = orjson.dumps({"id": PLAIN, "model": "m", "messages": messages})
    choices = [{"message": {"role": "assistant", "content": "3"}}]
    answer = orjson.dumps({"id": PLAIN, "model": "m", "choices": choices})
    sample = exchange(body, answer, path="/v1/chat/completions")
    captured = prepare(sample, Redaction(what="path", name="id"))
    assert not captured.holds(PLAIN.encode())
    assert b'"content":"3"' in captured.list_blobs("response")[0].replace(b" ", b"")


def test_an_error_does_not_quote_it() -> None:
    answer = orjson.dumps({"error": f"no user {PLAIN}"})
    body = orjson.dumps({"inputs": [], "parameters": {"user": PLAIN}})
    sample = exchange(body, answer, http_status=400)
    (event,) = prepare(sample, Redaction(what="path", name="parameters.user")).documents
    assert event["error"].startswith("not kept")


def test_an_error_may_not_quote_messages_that_cannot_be_read() -> None:
    error = f"cannot read {PLAIN}"
    sample = make_grpc_exchange(INFER, [b"\xff" + PLAIN.encode()], [], 3, error=error)
    assert prepare(sample).holds(error.encode())
    for rule in (BY_PATH, Redaction(what="metadata", name="user")):
        assert not prepare(sample, rule).holds(PLAIN.encode())
