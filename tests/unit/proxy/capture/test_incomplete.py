"""A capture that lost a part, or holds what cannot be read, says so in its events."""

from dataclasses import replace

import pytest

from inference_store.proxy.capture.prepared_capture import PreparedCapture, decode, encode
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import exchange, png, request_body
from tests.unit.proxy.capture.test_prepare import decode_events, prepare

OVER = Body(size=10**9, whole=False)
INCOMPLETE = {
    "the input is over a cap": (exchange(request=OVER), ["request_over_cap"]),
    "the answer is over a cap": (exchange(response=OVER), ["response_over_cap"]),
    "the request broke off": (
        exchange(request=Body(parts=(b'{"inp',), size=5, whole=False)),
        ["request_broken_off"],
    ),
    "the request cannot be read": (exchange(b"no json"), ["request_unreadable"]),
    "both": (exchange(b"no json", response=OVER), ["request_unreadable", "response_over_cap"]),
}


@pytest.mark.parametrize("case", INCOMPLETE)
def test_every_event_of_it_is_flagged(case: str) -> None:
    sample, reasons = INCOMPLETE[case]
    capture = prepare(sample)
    assert capture.problems == tuple(reasons)
    for event in decode_events(capture):
        assert event.flags == tuple(f"capture_{reason}" for reason in reasons)


def test_complete_captures_are_not_flagged() -> None:
    capture = prepare(exchange(request_body(png(), png())))
    assert capture.problems == ()
    assert {event.flags for event in decode_events(capture)} == {()}


def make_unread(rules: Rules, sample: Exchange) -> PreparedCapture:
    return prepare(replace(sample, request_headers=[("content-encoding", "br")]), rules)


def test_reports_an_input_that_cannot_be_redacted_as_lost() -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how="drop"),))
    capture = make_unread(rules, exchange(b"\x8b\x01"))
    (event,) = decode_events(capture)
    assert event.data is None
    assert event.flags == ("capture_request_unreadable",)


def test_it_is_counted_once_although_it_was_spooled() -> None:
    capture = prepare(exchange(request=OVER))
    again = decode(encode(capture))
    assert again.problems == ()
    assert again == replace(capture, problems=())
