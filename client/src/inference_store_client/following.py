"""What arrives in the index, as server-sent events: followed again if the connection ends.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import json
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from inference_store_client.values.answers import Problem

from .decoding import decode
from .errors import ConnectionFailed, StoreError, UnexpectedAnswer, make_refusal
from .exchange import open_content
from .requests import Request
from .transport import Transport

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


async def follow(transport: Transport, request: Request) -> AsyncGenerator[Event, None]:
    """Yield the events of a route for ever; `begin` comes again after each interruption, and
    `INTERRUPTED` with the reason before it, if the store cannot be reached at once.

    Raises the refusal that ended them, or ConnectionFailed if they never began.
    """
    attempt, retries = 0, transport.settings.retries
    while True:
        has_begun = False
        try:
            async with open_content(transport, request) as response:
                decoder = EventDecoder()
                async for piece in response.pieces:
                    for event in decoder.feed(piece):
                        if event.name == _END:
                            raise make_refusal(decode(Problem, event.data))
                        if not has_begun:  # from then on it is followed for ever
                            has_begun, attempt = True, 0
                            retries = replace(retries, attempts=sys.maxsize)
                        yield event
            if has_begun:  # the store has ended it, as it does after its time
                continue
            raise ConnectionFailed("the store sent no event")
        except StoreError as error:
            failure = error
        attempt += 1
        wait = retries.find_wait(failure, attempt)
        if wait is None:
            raise failure
        if retries.attempts == sys.maxsize and attempt == _ANNOUNCED_ATTEMPT:
            yield Event(INTERRUPTED, str(failure))
        await transport.sleep(wait)
