"""Each problem of a capture has a reason, whatever the protocol."""

from typing import Any

from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols import PROTOCOLS, Call, Model
from inference_store.proxy.protocols.protocol import Problem, join_problems, list_gaps
from tests.exchanges import exchange

from .exchanged import list_data, make_body, read_call

REST = ("v2", "chariot-v2", "kserve-v1", "openai")
GRPC = ("v2-grpc", "omi")
OVER, BROKEN_OFF = Body(size=100, whole=False), make_body(b'{"inputs": [', whole=False)
BROTLI = [("content-encoding", "br"), ("content-type", "application/json")]


def find_reasons(name: str, body: Body, answer: Body | None = None, **changes: Any) -> set[str]:
    """Find the reasons of a call whose request and answer are like this body."""
    protocol = PROTOCOLS[name]
    bodies = {"request": body, "response": answer or body}
    sample = exchange(b"", b"", transport=protocol.transport, **bodies, **changes)
    reading = protocol.read(sample, Call(protocol, "infer"), Model()).problem
    reasons = set() if reading is None else {f"{side}_{kind}" for side, kind in reading.reasons}
    assert bool(reading) == bool(reasons)
    assert reasons <= set(CAPTURE_PROBLEMS)
    return reasons


def make_reasons(kind: str) -> set[str]:
    return {f"request_{kind}", f"response_{kind}"}


def test_every_protocol_has_the_same_reasons() -> None:
    for name in REST:
        assert find_reasons(name, make_body(b'{"inputs": ')) >= make_reasons("not_json"), name
        coded = find_reasons(
            name, make_body(b"\x8b"), request_headers=BROTLI, response_headers=BROTLI
        )
        assert coded == make_reasons("unreadable"), name
    for name in GRPC:
        assert find_reasons(name, make_body(b"\xff")) == make_reasons("unreadable"), name
    for name in (*REST, *GRPC):
        assert find_reasons(name, OVER) >= make_reasons("over_cap"), name
        assert find_reasons(name, BROKEN_OFF) >= make_reasons("broken_off"), name


UNREADABLE = {
    "/v1/chat/completions": (b"{", b"[]", b"", b'{"model": "m"}', b'{"messages": 3}'),
    "/v1/models/m:predict": (b"", b"{", b'{"inputs": [1]}', b"[1]"),
    "/infer": (b"", b"{", b"{}", b"[1]", b'{"input": null}'),
}


def test_a_request_that_cannot_be_read_is_kept_whole() -> None:
    for path, requests in UNREADABLE.items():
        for request in requests:
            reading = read_call(path, request, {"predictions": [1, 2]})
            assert list_data(reading) == [request], path
            assert reading.problem, path


def test_a_request_without_input() -> None:
    assert find_reasons("v2", make_body(b'{"inputs": []}'), Body()) == {"request_no_input"}


def test_a_call_without_any_answer_lacks_nothing() -> None:
    none = Body(whole=False)
    assert list_gaps(none, "response") == []
    assert list_gaps(none, "request") == [("request", "broken_off")]


def test_reports_bodies_that_cannot_be_redacted_as_unreadable() -> None:
    assert make_body(b"x").dropped().gap == "unreadable"
    assert make_body(b"x", whole=False).dropped().gap == "broken_off"
    assert make_body(b"").dropped().gap is None


def test_problems_are_joined_with_all_their_reasons() -> None:
    cut = Problem("cut", ("request", "over_cap"))
    many = [cut, None, cut, *(Problem(f"{n}", ("response", "not_json")) for n in range(20))]
    result = join_problems(many)
    assert result is not None
    assert result.startswith("cut; 0; 1")
    assert result.count(";") == 7
    assert set(result.reasons) == {("request", "over_cap"), ("response", "not_json")}
    assert join_problems([None]) is None
