"""All matches as CSV: resumed after the last whole record. No I/O.

The store writes a cursor into the last field of each record; it is taken out again. CSV has no mark
of its end, and HTTP's own can be lost: a proxy that asks the store in HTTP/1.0 takes a broken
connection for the end, and a compressed answer that is cut off is no error of httpx. So the end is
where a page after the last record has nothing that was received before the stream began: what is
received meanwhile may come behind the end, for as long as one asks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from inference_store_client.streaming import RESTART, Chunk, Position, resume

from .columns import CHANGED
from .commands import Close, Deliver, Failure, Read, Steps
from .errors import ConnectionFailed, UnexpectedAnswer
from .question import Question
from .reading import read_page
from .requests import CSV
from .settings import ClientSettings
from .streaming import CUT

_CURSOR: Final = b'"cursor"'
_MOST_BYTES: Final = 256 * 1024 * 1024
_RECEIVED: Final = "received_at"
_LOOKED_AT: Final = 50
"""Matches after the last record: in most orders those that have just been received are few."""


class RecordDecoder:
    """Keeps what is not yet a whole record. One that is cut off is never returned."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_quoted = False

    @property
    def is_within(self) -> bool:
        """Whether a record has begun and has not ended."""
        return self._size > 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the records that the piece completes, with their line ends."""
        for line in piece.splitlines(keepends=True) if piece else ():
            self._pieces.append(line)
            self._size += len(line)
            self._is_quoted ^= bool(line.count(b'"') % 2)
            if line.endswith(b"\n") and not self._is_quoted:
                yield b"".join(self._pieces)
                self._pieces, self._size = [], 0
        if self._size > _MOST_BYTES:
            raise UnexpectedAnswer(f"a record of CSV has more than {_MOST_BYTES:,} bytes")


@dataclass(slots=True)
class _Head:
    """The record with the names of the columns, once it has come."""

    names: bytes | None = None


def stream_csv(
    question: Question, settings: ClientSettings, fields: Sequence[str] | None = None
) -> Steps[None]:
    """Deliver the records of a CSV file: a Chunk for several, or RESTART."""
    make_request = partial(question.columns_request, fields, accept=CSV)
    following = replace(question, fields=(_RECEIVED,))
    is_short = partial(_is_short, following, settings, datetime.now(UTC))
    read_part = partial(_read_records, _Head(), is_short)
    yield from resume(make_request, read_part, settings, Position())


def _is_short(
    question: Question, settings: ClientSettings, began: datetime, cursor: str | None
) -> Steps[bool]:
    """Return whether a match that was there when the stream began follows the cursor."""
    is_first = True
    while is_first or cursor is not None:
        page = yield from read_page(question, dict, settings, cursor, _LOOKED_AT)
        if page.items:
            return any(datetime.fromisoformat(item[_RECEIVED]) < began for item in page.items)
        cursor, is_first = page.next, False
    return False


def _read_records(
    head: _Head, is_short: Callable[[str | None], Steps[bool]], position: Position
) -> Steps[Failure | None]:
    """Read what one connection brings; None: that was the end."""
    if (failure := (yield from _read_answer(head, position))) is not None:
        return failure
    yield Close()
    return Failure(ConnectionFailed(CUT)) if (yield from is_short(position.cursor)) else None


def _read_answer(head: _Head, position: Position) -> Steps[Failure | None]:
    decoder, is_first = RecordDecoder(), True
    while True:
        piece = yield Read()
        if isinstance(piece, Failure):
            return piece
        assert isinstance(piece, bytes)
        if not piece:
            is_whole = not is_first and not decoder.is_within
            return None if is_whole else Failure(ConnectionFailed(CUT))
        records = [_split_cursor(record) for record in decoder.feed(piece)]
        if is_first and records:
            is_first = False
            if not (yield from _take_head(records.pop(0), head, position)):
                return Failure(ConnectionFailed(CHANGED))
        if records:
            content = b"".join(record for record, _ in records)
            yield Deliver([Chunk(content, len(records))])
            position.received += len(records)
            position.move(records[-1][1].decode().strip('"'))


def _take_head(record: tuple[bytes, bytes], head: _Head, position: Position) -> Steps[bool]:
    """Deliver the first record; False: its names are others than those before, which are void."""
    names, last = record
    if last != _CURSOR:
        raise UnexpectedAnswer("the answer is not CSV with cursors")
    if head.names is None:
        head.names = names
        yield Deliver([Chunk(names)])
        return True
    if head.names == names:
        return True
    head.names = None
    position.cursor, position.received = None, 0
    yield Deliver([RESTART])
    return False


def _split_cursor(record: bytes) -> tuple[bytes, bytes]:
    """Return a record without its last field, and that field: it has neither comma nor quote."""
    content = record.rstrip(b"\r\n")
    rest, _, cursor = content.rpartition(b",")
    return rest + record[len(content) :], cursor
