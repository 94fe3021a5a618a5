"""A capture that lost a part, or holds what cannot be read, says so in its events."""

from dataclasses import replace

from inference_store.proxy.capture.prepared_capture import decode, encode
from inference_store.proxy.exchange import Body
from inference_store.proxy.rules import Redaction, Rules
from tests.exchanges import CALL, exchange, png, request_body

from .captured import capture

OVER = Body(size=10**9, whole=False)
BROKEN_OFF = Body(parts=(b'{"inp',), size=5, whole=False)
INCOMPLETE = {
    "the input is over a cap": (exchange(request=OVER), ["request_over_cap"]),
    "the answer is over a cap": (exchange(response=OVER), ["response_over_cap"]),
    "the request broke off": (exchange(request=BROKEN_OFF), ["request_broken_off"]),
    "the request cannot be read": (exchange(b"no json"), ["request_unreadable"]),
    "both": (exchange(b"no json", response=OVER), ["request_unreadable", "response_over_cap"]),
    "nothing": (exchange(request_body(png(), png())), []),
}


def test_every_event_of_it_is_flagged() -> None:
    for case, (sample, reasons) in INCOMPLETE.items():
        captured = capture(sample, call=CALL)
        assert captured.prepared.problems == tuple(reasons), case
        for event in captured.events:
            assert event.flags == tuple(f"capture_{reason}" for reason in reasons), case


def test_reports_an_input_that_cannot_be_redacted_as_lost() -> None:
    rules = Rules(redactions=(Redaction(what="metadata", name="user", how="drop"),))
    sample = exchange(b"\x8b\x01", request_headers=[("content-encoding", "br")])
    (event,) = capture(sample, rules, call=CALL).events
    assert event.data is None
    assert event.flags == ("capture_request_unreadable",)


def test_it_is_counted_once_although_it_was_spooled() -> None:
    prepared = capture(exchange(request=OVER), call=CALL).prepared
    again = decode(encode(prepared))
    assert again.problems == ()
    assert again == replace(prepared, problems=())
