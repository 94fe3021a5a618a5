"""What arrives in the index, as server-sent events: followed again if the connection ends. No I/O.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from inference_store_client.values.answers import Problem

from .commands import Close, Deliver, Deliveries, Failure, Read, Steps, Wait
from .decoding import decode
from .errors import ConnectionFailed, UnexpectedAnswer, make_refusal
from .exchange import open_content
from .requests import Request
from .settings import ClientSettings

EVENTS: Final = "text/event-stream"
BEGIN: Final = "begin"
ARRIVED: Final = "inferences"
INTERRUPTED: Final = "interrupted"
"""An event of the client: its data says why the store cannot be reached."""
_ANNOUNCED_ATTEMPT: Final = 2
"""The failed attempt that is announced: the first is often a server that restarts."""
_END: Final = "end"
_MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    """An event: its name, and its data from JSON."""

    name: str
    data: Any


class EventDecoder:
    """Cuts a stream of bytes into events. One that is cut off is never returned."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that the piece completes. Raises UnexpectedAnswer."""
        *whole, self._buffer = (self._buffer + piece).split(b"\n\n")
        if len(self._buffer) > _MOST_BYTES:
            raise UnexpectedAnswer(f"an event has more than {_MOST_BYTES:,} bytes")
        for block in whole:
            members = dict(_split(line) for line in block.split(b"\n") if line[:1] != b":")
            if b"data" in members:
                yield _read_event(members)


def _split(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")


def _read_event(members: dict[bytes, bytes]) -> Event:
    try:
        name = members.get(b"event", b"message").decode()
        return Event(name, json.loads(members[b"data"]))
    except ValueError as wrong:
        raise UnexpectedAnswer(f"an event cannot be read: {wrong}") from wrong


def follow(request: Request, settings: ClientSettings) -> Deliveries[Event]:
    """Deliver the events of a route for ever; `begin` comes again after each interruption, and
    `INTERRUPTED` with the reason before it, if the store cannot be reached at once.

    Raises the refusal that ended them, or ConnectionFailed if they never began.
    """
    attempt, has_begun = 0, False
    endless = replace(settings.retries, attempts=sys.maxsize)
    while True:
        progress = _Progress()
        failure = yield from _follow_once(request, settings, progress)
        if failure is None or progress.has_begun:
            attempt, has_begun = 0, True
        if failure is None:
            continue
        attempt += 1
        wait = (endless if has_begun else settings.retries).find_wait(failure, attempt)
        if wait is None:
            raise failure.error
        if has_begun and attempt == _ANNOUNCED_ATTEMPT:
            yield Deliver([Event(INTERRUPTED, str(failure.error))])
        yield Wait(wait)


@dataclass(slots=True)
class _Progress:
    has_begun: bool = False


def _follow_once(
    request: Request, settings: ClientSettings, progress: _Progress
) -> Steps[Failure | None]:
    """Follow over one connection; None: the store has ended it, as it does after its time."""
    opened = yield from open_content(request, settings)
    if isinstance(opened, Failure):
        return opened
    failure = yield from _read_events(progress)
    yield Close()
    return failure


def _read_events(progress: _Progress) -> Steps[Failure | None]:
    decoder = EventDecoder()
    while piece := (yield Read()):
        if isinstance(piece, Failure):
            return piece
        assert isinstance(piece, bytes)
        for event in decoder.feed(piece):
            if event.name == _END:
                return Failure(make_refusal(decode(Problem, event.data)), is_transient=False)
            progress.has_begun = True
            yield Deliver([event])
    return None if progress.has_begun else Failure(ConnectionFailed("the store sent no event"))
