"""Each problem of a capture has a reason, whatever the protocol."""

from typing import Any

import pytest

from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols import PROTOCOLS, Call, Model
from inference_store.proxy.protocols.problems import Problem, join_problems, list_gaps
from tests.exchanges import exchange

REST = ("v2", "chariot-v2", "kserve-v1", "openai")
GRPC = ("v2-grpc", "omi")


def make_body(content: bytes, **changes: Any) -> Body:
    return Body(**{"parts": (content,) if content else (), "size": len(content), **changes})


def find_reasons(name: str, **changes: Any) -> set[str]:
    protocol = PROTOCOLS[name]
    sample = exchange(b"", b"", transport=protocol.transport, **changes)
    reading = protocol.read(sample, Call(protocol, "infer"), Model()).problem
    reasons = set() if reading is None else {f"{side}_{kind}" for side, kind in reading.reasons}
    assert bool(reading) == bool(reasons)
    assert reasons <= set(CAPTURE_PROBLEMS)
    return reasons


@pytest.mark.parametrize("name", REST)
def test_bodies_that_are_no_json(name: str) -> None:
    result = find_reasons(
        name, request=make_body(b'{"inputs": '), response=make_body(b'{"outputs": ')
    )
    assert result >= {"request_not_json", "response_not_json"}


@pytest.mark.parametrize("name", GRPC)
def test_messages_of_another_protocol(name: str) -> None:
    result = find_reasons(name, request=make_body(b"\xff"), response=make_body(b"\xff"))
    assert result == {"request_unreadable", "response_unreadable"}


@pytest.mark.parametrize("name", [*REST, *GRPC])
def test_bodies_over_a_cap(name: str) -> None:
    over = Body(size=100, whole=False)
    assert find_reasons(name, request=over, response=over) >= {
        "request_over_cap",
        "response_over_cap",
    }


@pytest.mark.parametrize("name", [*REST, *GRPC])
def test_bodies_that_broke_off(name: str) -> None:
    half = make_body(b'{"inputs": [', whole=False)
    result = find_reasons(name, request=half, response=half)
    assert result >= {"request_broken_off", "response_broken_off"}


@pytest.mark.parametrize("name", REST)
def test_codings_that_are_not_read(name: str) -> None:
    coding = [("content-encoding", "br"), ("content-type", "application/json")]
    result = find_reasons(
        name,
        request=make_body(b"\x8b"),
        request_headers=coding,
        response=make_body(b"\x8b"),
        response_headers=coding,
    )
    assert result == {"request_unreadable", "response_unreadable"}


def test_a_request_without_input() -> None:
    assert find_reasons("v2", request=make_body(b'{"inputs": []}')) == {"request_no_input"}


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
