"""What is wrong with a capture has a reason, whatever the protocol."""

from typing import Any

import pytest

from inference_store.inference.events import CAPTURE_PROBLEMS
from inference_store.proxy.exchange import Body
from inference_store.proxy.protocols import PROTOCOLS, Call, Model
from inference_store.proxy.protocols.problems import Problem, joined, lacks
from tests.exchanges import exchange

REST = ("v2", "chariot-v2", "kserve-v1", "openai")
GRPC = ("v2-grpc", "omi")


def body(content: bytes, **changes: Any) -> Body:
    return Body(**{"parts": (content,) if content else (), "size": len(content), **changes})


def reasons(name: str, **changes: Any) -> set[str]:
    protocol = PROTOCOLS[name]
    made = exchange(b"", b"", transport=protocol.transport, **changes)
    found = protocol.read(made, Call(protocol, "infer"), Model()).problem
    named = set() if found is None else {f"{side}_{kind}" for side, kind in found.reasons}
    assert bool(found) == bool(named)
    assert named <= set(CAPTURE_PROBLEMS)
    return named


@pytest.mark.parametrize("name", REST)
def test_bodies_that_are_no_json(name: str) -> None:
    found = reasons(name, request=body(b'{"inputs": '), response=body(b'{"outputs": '))
    assert found >= {"request_not_json", "response_not_json"}


@pytest.mark.parametrize("name", GRPC)
def test_messages_of_another_protocol(name: str) -> None:
    found = reasons(name, request=body(b"\xff"), response=body(b"\xff"))
    assert found == {"request_unreadable", "response_unreadable"}


@pytest.mark.parametrize("name", [*REST, *GRPC])
def test_bodies_over_a_cap(name: str) -> None:
    over = Body(size=100, whole=False)
    assert reasons(name, request=over, response=over) >= {"request_over_cap", "response_over_cap"}


@pytest.mark.parametrize("name", [*REST, *GRPC])
def test_bodies_that_broke_off(name: str) -> None:
    half = body(b'{"inputs": [', whole=False)
    found = reasons(name, request=half, response=half)
    assert found >= {"request_broken_off", "response_broken_off"}


@pytest.mark.parametrize("name", REST)
def test_codings_that_are_not_read(name: str) -> None:
    coding = [("content-encoding", "br"), ("content-type", "application/json")]
    found = reasons(
        name,
        request=body(b"\x8b"),
        request_headers=coding,
        response=body(b"\x8b"),
        response_headers=coding,
    )
    assert found == {"request_unreadable", "response_unreadable"}


def test_a_request_without_input() -> None:
    assert reasons("v2", request=body(b'{"inputs": []}')) == {"request_no_input"}


def test_a_call_without_any_answer_lacks_nothing() -> None:
    none = Body(whole=False)
    assert lacks(none, "response") == []
    assert lacks(none, "request") == [("request", "broken_off")]


def test_what_a_redaction_cannot_read_is_unreadable_and_not_over_a_cap() -> None:
    assert body(b"x").dropped().gap == "unreadable"
    assert body(b"x", whole=False).dropped().gap == "broken_off"
    assert body(b"").dropped().gap is None


def test_problems_are_joined_with_all_their_reasons() -> None:
    cut = Problem("cut", ("request", "over_cap"))
    many = [cut, None, cut, *(Problem(f"{n}", ("response", "not_json")) for n in range(20))]
    found = joined(many)
    assert found is not None
    assert found.startswith("cut; 0; 1")
    assert found.count(";") == 7
    assert set(found.reasons) == {("request", "over_cap"), ("response", "not_json")}
    assert joined([None]) is None
