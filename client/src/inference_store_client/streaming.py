"""A stream of lines, each an inference. No I/O.

Each line is delivered once: a line that was cut off is dropped, and comes again after the cursor of
the line before. Without the last line there is an error, never a short result.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from .commands import Deliver, Failure, Read, Steps
from .decoding import decode
from .errors import ConnectionFailed, UnexpectedAnswer, make_refusal
from .exchange import TRANSIENT
from .question import Question
from .resuming import Position, resume
from .settings import ClientSettings
from .store_warnings import warn
from .values.answers import StreamEnd

Build: TypeAlias = Callable[[dict[str, Any]], Any]
"""Makes an inference of a line."""
CUT = "the stream ended without its end"


def stream(question: Question, build: Build, settings: ClientSettings) -> Steps[None]:
    """Deliver every match of a question. Raises StreamIncomplete, or the store's refusal."""
    position = Position(None if question.sample is None else question.sample["size"])
    yield from resume(question.stream_request, partial(_read_lines, build), settings, position)


def _read_lines(build: Build, position: Position) -> Steps[Failure | None]:
    decoder, begin = LineDecoder(), position.received
    while True:
        piece = yield Read()
        if isinstance(piece, Failure):
            return piece
        if not piece:
            return Failure(ConnectionFailed(CUT))
        assert isinstance(piece, bytes)
        items: list[Any] = []
        end = _take_lines(decoder.feed(piece), build, position, items)
        if items:
            yield Deliver(items)
        if end is not None:
            return _finish(end, position, position.received - begin)
        if position.is_full:
            return None


def _take_lines(
    lines: Iterator[dict[str, Any]], build: Build, position: Position, items: list[Any]
) -> StreamEnd | None:
    """Add the inferences of the lines to `items`; return the last line, if it is there."""
    for line in lines:
        if "cursor" not in line:
            return decode(StreamEnd, line)
        position.move(line["cursor"])
        if "uid" in line:  # else it says how far the search has come
            items.append(build(line))
            position.received += 1
        if position.is_full:
            break
    return None


def _finish(end: StreamEnd, position: Position, received: int) -> Failure | None:
    """Return what the last line of a connection says; None: nothing is left."""
    if end.count != received:
        raise UnexpectedAnswer(f"the stream sent {received} inferences and counts {end.count}")
    warn(end.warnings)
    if end.problem is None and end.next is None:
        return None
    position.cursor = end.next or position.cursor
    if end.problem is None:
        return Failure(ConnectionFailed("the store ended the stream before its end"))
    return Failure(make_refusal(end.problem), end.problem.status in TRANSIENT)


MOST_BYTES: Final = 256 * 1024 * 1024
"""Of one line."""


class LineDecoder:
    """Keeps what is not yet a whole line. A line that is cut off is never returned."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the lines that the piece completes. Raises UnexpectedAnswer."""
        *whole, rest = piece.split(b"\n")
        for line in whole:
            self._pieces.append(line)
            yield _read_line(b"".join(self._pieces))
            self._pieces, self._size = [], 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MOST_BYTES:
            raise UnexpectedAnswer(f"a line of the stream has more than {MOST_BYTES:,} bytes")


def _read_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as wrong:
        raise UnexpectedAnswer(f"a line of the stream is not JSON: {wrong}") from wrong
    if not isinstance(value, dict):
        raise UnexpectedAnswer("a line of the stream is not an object")
    return value
