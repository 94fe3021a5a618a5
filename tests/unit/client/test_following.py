"""Arrivals are followed: again after each interruption, until the store refuses."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from inference_store_client import Forbidden, Unavailable, UnexpectedAnswer
from inference_store_client.commands import Close, Deliver, Failure, Open, Read, Response, Wait
from inference_store_client.errors import ConnectionFailed
from inference_store_client.following import Event, EventDecoder, follow
from inference_store_client.origin import Origin
from inference_store_client.requests import make_request
from inference_store_client.retries import Retries
from inference_store_client.settings import ClientSettings
from tests.both_clients import make_problem

_SETTINGS = ClientSettings(Origin("https://store.example"), retries=Retries(attempts=2))
_BEGIN = b'event: begin\ndata: {"at": "2026-11-01T00:00:00Z"}\n\n'
_ARRIVED = b'event: inferences\ndata: {"items": [], "more": false}\n\n'
Piece = bytes | Failure


def encode_end(status: int) -> bytes:
    problem = json.loads(make_problem(status).content)
    return b"event: end\ndata: " + json.dumps(problem).encode() + b"\n\n"


def drive(connections: list[Response | list[Piece]]) -> tuple[list[str], list[float]]:
    """Perform the steps; return the events and the waits."""
    steps = follow(make_request("GET", "/v1/models/m/inferences/follow"), _SETTINGS)
    events: list[str] = []
    waits: list[float] = []
    pieces: Iterator[Piece] = iter(())
    outcome: Any = None
    try:
        while True:
            command = steps.send(outcome)
            outcome = None
            match command:
                case Open():
                    connection = connections.pop(0)
                    is_refusal = isinstance(connection, Response)
                    outcome = connection if isinstance(connection, Response) else Response(200)
                    content = [outcome.content] if is_refusal else connection
                    pieces = iter([*content, b""])  # type: ignore[misc]
                case Read():
                    outcome = next(pieces)
                case Wait(seconds):
                    waits.append(seconds)
                case Deliver(items):
                    events += [event.name for event in items]
                case Close():
                    pass
    except Forbidden:
        return events, waits


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_are_cut_whatever_the_pieces_are(size: int) -> None:
    content = b": here\n\n" + _BEGIN + b": here\n\n" + _ARRIVED
    decoder = EventDecoder()
    pieces = (content[begin : begin + size] for begin in range(0, len(content), size))
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert events == [
        Event("begin", {"at": "2026-11-01T00:00:00Z"}),
        Event("inferences", {"items": [], "more": False}),
    ]


def test_it_is_followed_again_until_the_store_refuses() -> None:
    cut = Failure(ConnectionFailed("cut"))
    connections: list[Response | list[Piece]] = [
        [_BEGIN, _ARRIVED],
        [_BEGIN, cut],
        [_BEGIN, _ARRIVED[:9], cut],
        [_BEGIN, encode_end(403)],
    ]
    events, waits = drive(connections)
    assert events == ["begin", "inferences", "begin", "begin", "begin"]
    assert len(waits) == 2


@pytest.mark.parametrize("connections", [[Response(503)] * 2, [[], []]])
def test_without_progress_it_is_an_error(connections: list[Any]) -> None:
    with pytest.raises((Unavailable, ConnectionFailed)):
        drive(connections)


def test_what_is_no_event_is_an_error() -> None:
    with pytest.raises(UnexpectedAnswer):
        [*EventDecoder().feed(b"event: begin\ndata: {\n\n")]
