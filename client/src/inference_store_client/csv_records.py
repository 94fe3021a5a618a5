"""All matches as CSV: resumed after the last whole record.

The store writes a cursor into the last field of each record; it is taken out again. CSV has no mark
of its end, and HTTP's own can be lost: a proxy that asks the store in HTTP/1.0 takes a broken
connection for the end, and a compressed answer that is cut off is no error of httpx. So the end is
where a page after the last record has nothing that was received before the stream began: what is
received meanwhile may come behind the end, for as long as one asks.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from inference_store_client.streaming import (
    CUT,
    Chunk,
    LineDecoder,
    Position,
    Restart,
    resume,
    take_head,
)

from .errors import ConnectionFailed, UnexpectedAnswer
from .question import Question
from .reading import read_filled_page
from .requests import CSV
from .transport import Response, Transport

_CURSOR: Final = b'"cursor"'
_RECEIVED: Final = "received_at"
_LOOKED_AT: Final = 50
"""Matches after the last record: in most orders those that have just been received are few."""


def stream_csv(transport: Transport, question: Question) -> AsyncGenerator[Chunk | Restart, None]:
    """Yield the records of a CSV file: a Chunk for several, or RESTART."""
    began, following = datetime.now(UTC), replace(question, fields=(_RECEIVED,))

    async def read_part(response: Response, position: Position) -> AsyncIterator[Any]:
        async for item in _read_records(response, position):
            yield item
        page = await read_filled_page(transport, following, dict, position.cursor, _LOOKED_AT)
        # a match that was there when the stream began follows the last record
        if any(datetime.fromisoformat(item[_RECEIVED]) < began for item in page.items):
            raise ConnectionFailed(CUT)

    make_request = partial(question.query_request, accept=CSV)
    return resume(transport, make_request, read_part, Position())


async def _read_records(response: Response, position: Position) -> AsyncIterator[Chunk | Restart]:
    """Yield what one connection brings."""
    decoder, is_first = LineDecoder(is_csv=True), True
    async for piece in response.pieces:
        records = [_split_cursor(record) for record in decoder.feed(piece)]
        if is_first and records:
            is_first = False
            names, last = records.pop(0)
            if last != _CURSOR:
                raise UnexpectedAnswer("the answer is not CSV with cursors")
            async for item in take_head(names, position, is_same=names == position.head):
                yield item
        if records:
            position.received += len(records)
            position.move(records[-1][1].decode().strip('"'))
            yield Chunk(b"".join(record for record, _ in records), len(records))
    if is_first or decoder.is_within:
        raise ConnectionFailed(CUT)


def _split_cursor(record: bytes) -> tuple[bytes, bytes]:
    """Return a record without its last field, and that field: it has neither comma nor quote."""
    content = record.rstrip(b"\r\n")
    rest, _, cursor = content.rpartition(b",")
    return rest + record[len(content) :], cursor
