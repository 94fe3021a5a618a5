"""All matches as CSV: resumed after the last whole record. No I/O.

The store writes a cursor into the last field of each record; it is taken out again. CSV has no mark
of its end, and HTTP's own can be lost: a proxy that asks the store in HTTP/1.0 takes a broken
connection for the end, and a compressed answer that is cut off is no error of httpx. So the end is
where a page after the last record has nothing that was received before the stream began: what is
received meanwhile may come behind the end, for as long as one asks.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from inference_store_client.streaming import (
    Chunk,
    LineDecoder,
    Position,
    Restart,
    resume,
    take_head,
)

from .columns import CHANGED
from .commands import Close, Deliver, Deliveries, Failure, Read, Steps
from .errors import ConnectionFailed, UnexpectedAnswer
from .question import Question
from .reading import read_filled_page
from .requests import CSV
from .streaming import CUT

_CURSOR: Final = b'"cursor"'
_RECEIVED: Final = "received_at"
_LOOKED_AT: Final = 50
"""Matches after the last record: in most orders those that have just been received are few."""


def stream_csv(question: Question) -> Deliveries[Chunk | Restart]:
    """Deliver the records of a CSV file: a Chunk for several, or RESTART."""
    make_request = partial(question.query_request, accept=CSV)
    following = replace(question, fields=(_RECEIVED,))
    is_short = partial(_is_short, following, datetime.now(UTC))
    read_part = partial(_read_records, is_short)
    yield from resume(make_request, read_part, Position())


def _is_short(question: Question, began: datetime, cursor: str | None) -> Steps[bool]:
    """Return whether a match that was there when the stream began follows the cursor."""
    page = yield from read_filled_page(question, dict, cursor, _LOOKED_AT)
    return any(datetime.fromisoformat(item[_RECEIVED]) < began for item in page.items)


def _read_records(
    is_short: Callable[[str | None], Steps[bool]], position: Position
) -> Steps[Failure | None]:
    """Read what one connection brings; None: that was the end."""
    if (failure := (yield from _read_answer(position))) is not None:
        return failure
    yield Close()
    return Failure(ConnectionFailed(CUT)) if (yield from is_short(position.cursor)) else None


def _read_answer(position: Position) -> Steps[Failure | None]:
    decoder, is_first = LineDecoder(is_csv=True), True
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
            if not (yield from _take_head(records.pop(0), position)):
                return Failure(ConnectionFailed(CHANGED))
        if records:
            content = b"".join(record for record, _ in records)
            yield Deliver([Chunk(content, len(records))])
            position.received += len(records)
            position.move(records[-1][1].decode().strip('"'))


def _take_head(record: tuple[bytes, bytes], position: Position) -> Steps[bool]:
    """Deliver the first record; False: its names are others than those before, which are void."""
    names, last = record
    if last != _CURSOR:
        raise UnexpectedAnswer("the answer is not CSV with cursors")
    return (yield from take_head(names, position, is_same=names == position.head))


def _split_cursor(record: bytes) -> tuple[bytes, bytes]:
    """Return a record without its last field, and that field: it has neither comma nor quote."""
    content = record.rstrip(b"\r\n")
    rest, _, cursor = content.rpartition(b",")
    return rest + record[len(content) :], cursor
