"""`istore tail`: shows the last arrivals in the order of their arrival, and follows."""

import argparse
import json
import sys
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from inference_store_client.decoding import decode
from inference_store_client.errors import (
    ConnectionFailed,
    StoreError,
    Unavailable,
    UnexpectedAnswer,
    make_refusal,
)
from inference_store_client.exchange import open_content
from inference_store_client.question import Question
from inference_store_client.reading import read_items
from inference_store_client.requests import Request, make_path, make_request
from inference_store_client.transport import Transport, iterate
from inference_store_client.values.answers import Problem

from .arguments import (
    REFUSE,
    add_columns,
    add_filter,
    add_store,
    make_question,
    open_store,
    parse_size,
)
from .ending import describe, say
from .main import Command
from .printing import RowPrinter, add_format, choose_columns

_LAST: Final = 50
"""An event has at most so many, and so has what is looked up after an interruption."""
_MOST_SEEN: Final = 10_000
_BY_ARRIVAL: Final = "-indexed_at"
_LATER: Final = "empty"
"""A key that was there at the beginning may have been erased since."""


# What arrives, as server-sent events: followed again if the connection ends.
#
# https://html.spec.whatwg.org/multipage/server-sent-events.html

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("model", help="the id of the model")
    add_filter(parser)
    parser.add_argument(
        "--limit",
        type=parse_size,
        default=10,
        help="begin with so many of the last day (default: %(default)s)",
    )
    parser.add_argument(
        "--no-follow", action="store_true", help="end there, and do not wait for more"
    )
    add_columns(parser)
    add_format(parser)
    add_store(parser)
    parser.set_defaults(since=None, until=None, unknown_keys=REFUSE)


def run(options: argparse.Namespace) -> int:
    """Show them until Ctrl-C."""
    with open_store(options) as store:
        tail = Tail(store._transport, options, RowPrinter(options))
        if options.no_follow:
            tail.show_last(options.limit)
            return 0
        tail.follow()
    return 0


@dataclass(slots=True)
class Tail:
    """What was shown, so that nothing comes twice."""

    transport: Transport
    options: argparse.Namespace
    printer: RowPrinter
    seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    has_begun: bool = False

    def follow(self) -> None:
        """Show what arrives."""
        path = make_path("models", self.options.model, "inferences", "follow")
        params = {} if self.options.filter is None else {"filter": self.options.filter}
        request = replace(make_request("GET", path, params=params), accept=EVENTS)
        for event in iterate(follow(self.transport, request)):
            if event.name == BEGIN:
                self._begin()
            elif event.name == ARRIVED:
                self._show_arrived(event.data)
            elif event.name == INTERRUPTED:
                say(f"{event.data}: waiting for the store; Ctrl-C ends")

    def _begin(self) -> None:
        """Show the last arrivals; if they cannot be found in time, those to come are shown."""
        try:
            self.show_last(_LAST if self.has_begun else self.options.limit)
        except Unavailable as error:
            say(describe(error))
        self.has_begun = True

    def show_last(self, limit: int) -> None:
        """Show the last arrivals that were not shown, in the order of their arrival."""
        columns = choose_columns(self.options)
        since = datetime.now(UTC) - timedelta(days=1)
        question = replace(make_question(self.options, columns, sort=_BY_ARRIVAL), since=since)
        if self.has_begun:
            question = replace(question, unknown_keys=_LATER)
        items = list(self._read(question, limit))
        new = [item for item in reversed(items) if item["uid"] not in self.seen]
        if self.has_begun and len(new) == limit:
            say("The connection was interrupted, and more may have arrived meanwhile.")
        self._show(new)

    def _show_arrived(self, arrived: Any) -> None:
        uids = [item["uid"] for item in arrived["items"] if item["uid"] not in self.seen]
        if arrived["more"]:
            say(f"More arrived with them: these are the last {len(arrived['items'])}.")
        ids = [f"uid:{uid}" for uid in uids]
        question = make_question(self.options, choose_columns(self.options))
        question = replace(question, filter=None, inference_ids=ids, unknown_keys=_LATER)
        by_uid = {item["uid"]: item for item in self._read(question, _LAST)} if ids else {}
        self._show([by_uid[uid] for uid in uids if uid in by_uid])

    def _read(self, question: Question, limit: int) -> Iterator[dict[str, Any]]:
        return iterate(read_items(self.transport, question.take(limit), dict))

    def _show(self, items: Sequence[dict[str, Any]]) -> None:
        self.seen.update(dict.fromkeys(item["uid"] for item in items))
        while len(self.seen) > _MOST_SEEN:
            self.seen.popitem(last=False)
        self.printer.print_rows(items)


TAIL: Final = Command(add_arguments, run)
