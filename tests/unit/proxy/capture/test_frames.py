"""Exchanges as one process tells them to the other: the same comes out, whatever strangers sent."""

import socket
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import ID_HEADER
from inference_store.proxy.capture.process import Handshake, read_handshake, write_exchange
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.configuration import Configuration, Redaction, Rules, Sampling
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call, recognise_call
from inference_store.proxy.routing import Route
from tests.exchanges import exchange
from tests.settings import make_settings
from tests.unit.proxy.protocols.exchanged import make_grpc_exchange
from tests.unit.proxy.protocols.v2_grpc.calls import make_request, make_response

from .captured import NAMED_PROTOCOLS, STREAM, capture, make_preparation, receive
from .captured import write as write_captured
from .recording import UPSTREAM

RULES = Rules(
    model="m",
    model_id="m",
    sampling=Sampling(share=0.5, key="camera"),
    redactions=(Redaction(what="path", name="a.b", how="hash"),),
    metadata_headers=("x-camera",),
)
CONFIGURATION = Configuration([UPSTREAM], [RULES, Rules(upstream="other")])
CALL = Call(PROTOCOLS["v2"], "infer", "model", None)
LATIN = st.text(st.characters(max_codepoint=255))
TIMES = st.datetimes(timezones=st.just(UTC))
BODIES = st.builds(
    lambda parts, size, whole: Body(parts=parts, size=size, whole=whole),
    st.lists(st.binary(max_size=50)),
    st.integers(0, 2**40),
    st.booleans(),
)
EXCHANGES = st.builds(
    Exchange,
    transport=st.sampled_from(["rest", "grpc"]),
    method=LATIN,
    path=LATIN,
    query=LATIN,
    position=st.integers(0, 2**40),
    is_matched_in_doubt=st.booleans(),
    request_headers=st.lists(st.tuples(LATIN, LATIN)),
    request=BODIES,
    response_headers=st.lists(st.tuples(LATIN, LATIN)),
    response=BODIES,
    response_trailers=st.lists(st.tuples(LATIN, LATIN)),
    http_status=st.none() | st.integers(100, 999),
    grpc_code=st.none() | st.integers(0, 16),
    error=st.none() | st.text(),
    received_at=TIMES,
    forwarded_at=st.none() | TIMES,
    responded_at=st.none() | TIMES,
    first_part_at=st.none() | TIMES,
    finished_at=st.none() | TIMES,
)


def write(sample: Exchange, model: str | None = "m") -> bytes:
    return write_exchange(sample, CALL, Route(UPSTREAM, CALL, model=model), 7)


@given(st.lists(st.tuples(EXCHANGES, st.just("m") | st.text(min_size=1)), max_size=5))
def test_frames_are_read_back_as_written(sent: list[tuple[Exchange, str]]) -> None:
    came = receive(b"".join(write(*message) for message in sent))
    for got, (sample, model) in zip(came, sent, strict=True):
        rules = RULES if model == "m" else Rules()
        expected = Work(sample, CALL, rules, model, dialect="triton")
        assert (got.work(PROTOCOLS, CONFIGURATION), got.reserved) == (expected, 7)


def test_frames_of_any_size_come_in_parts_of_any_size() -> None:
    bodies = [bytes([65 + at % 26]) * size for at, size in enumerate((0, 9, 10**6, 70_000) * 3)]
    raw = b"".join(write(exchange(body, b"")) for body in bodies)
    for size in (1000, 4096, 100_000, 1 << 30):
        assert [each.exchange.request.bytes for each in receive(raw, size)] == bodies, size


def test_a_call_that_names_no_model_comes_with_the_rules_of_all() -> None:
    (came,) = receive(write(exchange(error="\ud800"), None))
    work = came.work(PROTOCOLS, CONFIGURATION)
    assert (work.model, work.rules, work.by_name) == ("up", Rules(), [RULES])
    assert work.exchange.error == "?"


def test_an_exchange_that_was_cut_off_did_not_come() -> None:
    for last in ((), (b"",), (b"", b"x", b"")):
        sample = exchange(b"asked", b"told")
        for body in (sample.request, sample.response):
            body.parts = (*body.parts, *last)  # a stream's messages may be empty
        raw = write(sample)
        for end in range(len(raw)):
            assert receive(raw[:end]) == [], last
        assert len(receive(raw)) == 1, last


def test_a_process_gets_the_settings_with_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy_settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        s3_access_key="a key",
        s3_secret_key="a secret",
        proxy_spool="all",
        proxy_spool_directory="/spool",
    )
    handshake = Handshake(
        settings=proxy_settings, models=CONFIGURATION.models, producer="p", handed=3
    )
    raw = handshake.frame()
    monkeypatch.setenv("INFERENCE_STORE_PROXY_SPOOL", "off")
    came = read_first(raw + b"an exchange")
    assert came is not None
    assert came.settings.model_dump() == proxy_settings.model_dump()
    assert (came.models, came.handed) == (CONFIGURATION.models, 3)
    assert read_first(raw[:10]) is None
    assert read_first(b"") is None


def read_first(raw: bytes) -> Handshake | None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(raw)
        ours.shutdown(socket.SHUT_WR)
        return read_handshake(theirs)


# JSON nested as deep as it can be read, at any place of a request or an answer, is captured.

DEPTH = 1000
HOLE = '"HOLE"'
TENSOR = {
    "name": "a",
    "datatype": "BYTES",
    "shape": [1],
    "data": ["x"],
    "parameters": {"metadata": [{"key": "k", "value": "v"}], "prompts": ["p"], "action": "b"},
}
SECOND = {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["x"]}
V2 = {"id": "1", "parameters": {"prompts": ["p"]}, "inputs": [TENSOR, SECOND]}
FUNCTION = {"function": {"name": "f", "arguments": "{}"}}
PART = {"type": "image_url", "image_url": {"url": "x"}}
TURN = {"role": "user", "content": [PART, {"type": "file", "file": 1}], "tool_calls": [FUNCTION]}
CHOICE = {"index": 0, "message": TURN, "delta": TURN, "finish_reason": "stop", "text": "t"}
KIND: dict[str, tuple[str, Any, Any]] = {
    "v2": ("/v2/models/m/infer", V2, {"id": "2", "outputs": [TENSOR], "parameters": {"a": 1}}),
    "generate": ("/v2/models/m/generate", {"text_input": "a", "parameters": {}}, {"text": "a"}),
    "chariot": (
        "/infer",
        {"input": "aGk=", "parameters": {"metadata": [1], "prompts": ["p"], "action": "a"}},
        {"output": [1], "detail": "x"},
    ),
    "kserve": ("/v1/models/m:predict", {"instances": [1, 2]}, {"predictions": [1, 2]}),
    "chat": ("/v1/chat/completions", {"model": "m", "messages": [TURN]}, {"choices": [CHOICE]}),
    "completions": ("/v1/completions", {"prompt": ["a", "b"]}, {"choices": [CHOICE]}),
}
SAMPLED = Sampling(share=0.5, key="prompts", always_errors=True, always_below=0.5)
REDACTED = (Redaction(what="metadata", name="k"), Redaction(what="path", name="inputs[].data"))


def list_with_hole(value: Any) -> Iterator[Any]:
    """The document with a hole in the place of each of its values, one after the other."""
    yield "HOLE"
    if isinstance(value, dict):
        for name, child in value.items():
            yield from ({**value, name: inner} for inner in list_with_hole(child))
    elif isinstance(value, list):
        for at, child in enumerate(value):
            yield from ([*value[:at], inner, *value[at + 1 :]] for inner in list_with_hole(child))


def make_bodies(document: Any) -> Iterator[bytes]:
    for with_hole in list_with_hole(document):
        text = orjson.dumps(with_hole).decode()
        # as much as is read together with what is around it; lists and objects take turns
        around = text[: text.index(HOLE)].count("[") + text[: text.index(HOLE)].count("{")
        pairs, odd = divmod(DEPTH - around, 2)
        deep = "[" * odd + '{"a":[' * pairs + "1" + "]}" * pairs + "]" * odd
        yield text.replace(HOLE, deep, 1).encode()


@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize("rules", [Rules(sampling=SAMPLED), Rules(redactions=REDACTED)])
def test_deep_nesting_loses_no_exchange(kind: str, rules: Rules) -> None:
    path, request, response = KIND[kind]
    pairs = [(body, orjson.dumps(response)) for body in make_bodies(request)]
    pairs += [(orjson.dumps(request), body) for body in make_bodies(response)]
    call = recognise_call(NAMED_PROTOCOLS, "rest", "POST", path)
    assert call is not None
    preparation = make_preparation()
    for body, answer in pairs:
        chosen = preparation.choose(Work(exchange(body, answer, path=path), call, rules, "m"))
        if chosen is not None:
            assert write_captured(chosen).messages


# The names of a stream's inferences, each captured as an exchange of its own.

MADE: Headers = [(ID_HEADER, "made")]
GIVEN: Headers = [("x-request-id", "given")]


def test_only_the_first_request_is_named_as_if_it_were_alone() -> None:
    for case, position, name, answer, headers, expected in (
        ("the first", 0, "", "", GIVEN, ["given", "made"]),
        ("a later one", 3, "", "", GIVEN, ["given-3", "given", "made"]),
        ("without metadata", 3, "", "", [], ["made-3", "made"]),
        ("with an id", 3, "mine", "mine", GIVEN, ["mine", "given", "made"]),
        ("with the server's id", 3, "", "theirs", [], ["theirs", "made"]),
    ):
        request = make_request(id=name, name="m").SerializeToString()
        response = make_response(id=answer, name="").SerializeToString()
        both: dict[str, Any] = {"request_headers": headers, "response_headers": MADE}
        sample = make_grpc_exchange(STREAM, [request], [response], position=position, **both)
        (event,) = capture(sample, protocol="v2-grpc").documents
        assert [event["inference_id"], *event.get("aliases", ())] == expected, case
