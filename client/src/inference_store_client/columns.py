"""All matches as a file, in Arrow or CSV: resumed after the last whole batch or record.

Batches come from one answer or from several that have the same columns. If a key came meanwhile, so
that a later answer has other columns, the stream begins again.
"""

import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from typing import Any, Final

from inference_store_client.errors import warn
from inference_store_client.streaming import (
    CUT,
    Chunk,
    LineDecoder,
    Position,
    Restart,
    collect,
    resume,
    take_head,
)

from .arrow_batches import list_columns, read_batch, read_warnings
from .errors import ConnectionFailed, UnexpectedAnswer
from .question import MOST_OF_A_PAGE, Question
from .reading import read_filled_page
from .requests import ARROW, CSV, Request
from .transport import Response, Transport

# Cuts a stream of bytes into the messages of Arrow IPC, without decoding them.
#
# https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format

MOST_BYTES: Final = 2 * 1024**3
"""Of one message."""
END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
# Fields of the flatbuffer `Message`, by their number.
_KIND, _BODY_LENGTH = 1, 3


class MessageKind(IntEnum):
    """What a message is; the numbers are Arrow's."""

    END = 0
    SCHEMA = 1
    BATCH = 3


@dataclass(frozen=True, slots=True)
class Message:
    """One whole message."""

    kind: int
    content: bytes


class MessageDecoder:
    """Keeps what is not yet a whole message. One that is cut off is never returned."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _PREFIX.size

    def feed(self, piece: bytes) -> Iterator[Message]:
        """Yield the messages that the piece completes. Raises UnexpectedAnswer."""
        self._buffer += piece
        while len(self._buffer) >= self._needed:
            message = self._take()
            if message is not None:
                yield message

    def _take(self) -> Message | None:
        """Return the message that the buffer begins with; None: it is not whole yet."""
        mark, size = _PREFIX.unpack_from(self._buffer)
        if mark != _CONTINUATION or not 0 <= size <= MOST_BYTES:
            raise UnexpectedAnswer("the answer is not a stream of Arrow")
        head = _PREFIX.size + size
        if len(self._buffer) < head:
            self._needed = head
            return None
        kind, body = (MessageKind.END, 0) if size == 0 else _read_head(self._buffer, size)
        self._needed = head + body
        if len(self._buffer) < self._needed:
            return None
        content = bytes(self._buffer[: self._needed])
        del self._buffer[: self._needed]
        self._needed = _PREFIX.size
        return Message(kind, content)


def _read_head(buffer: bytearray, size: int) -> tuple[int, int]:
    """Return the kind of a message and the length of its body."""
    head = bytes(buffer[_PREFIX.size : _PREFIX.size + size])
    try:
        kind_at, length_at = _find_field(head, _KIND), _find_field(head, _BODY_LENGTH)
        kind = head[kind_at] if kind_at else 0
        length = struct.unpack_from("<q", head, length_at)[0] if length_at else 0
    except (struct.error, IndexError) as wrong:
        raise UnexpectedAnswer(f"a message of Arrow cannot be read: {wrong}") from wrong
    if kind == 0 or not 0 <= length <= MOST_BYTES:
        raise UnexpectedAnswer("a message of Arrow has no kind, or a body without bounds")
    return kind, length


def _find_field(head: bytes, number: int) -> int:
    """Return where a field of the root table is; 0: the table does not have it."""
    (table,) = struct.unpack_from("<I", head)
    (back,) = struct.unpack_from("<i", head, table)
    vtable = table - back
    (vtable_size,) = struct.unpack_from("<H", head, vtable)
    entry = 4 + 2 * number
    if entry + 2 > vtable_size:
        return 0
    (offset,) = struct.unpack_from("<H", head, vtable + entry)
    return table + offset if offset else 0


async def read_columns(transport: Transport, question: Question) -> bytes:
    """Return all matches as an Arrow IPC stream, or the columns that are its fields.

    Raises StreamIncomplete, or the store's refusal.
    """
    chunks = await collect(stream_columns(transport, question))
    return b"".join(chunk.content for chunk in chunks)


async def stream_columns(
    transport: Transport, question: Question
) -> AsyncGenerator[Chunk | Restart, None]:
    """Yield the pieces of an Arrow IPC stream: a Chunk each, or RESTART."""
    position = Position(question.limit)
    ask = partial(_make_request, question, position)
    while True:
        before = position.received
        async for item in resume(transport, ask, _read_messages, position):
            yield item
        # The store takes a limit of a page; a sample it sends as a whole.
        is_whole = question.limit is None or question.seed is not None
        if is_whole or position.is_full or position.received == before:
            break
    yield Chunk(END)


def _make_request(question: Question, position: Position, cursor: str | None) -> Request:
    left = None if question.limit is None else question.limit - position.received
    limit = None if left is None else min(left, MOST_OF_A_PAGE)
    return question.query_request(cursor, limit=limit, accept=ARROW)


async def _read_messages(response: Response, position: Position) -> AsyncIterator[Chunk | Restart]:
    decoder = MessageDecoder()
    async for piece in response.pieces:
        for message in decoder.feed(piece):
            if message.kind == MessageKind.END:
                return
            if message.kind == MessageKind.SCHEMA:
                async for item in _take_schema(message.content, position):
                    yield item
                continue
            assert position.head is not None
            length, cursor = read_batch(position.head + message.content + END)
            if cursor is not None:
                position.received += length
                position.move(cursor)
                yield Chunk(message.content, length)
    raise ConnectionFailed(CUT)


def _take_schema(schema: bytes, position: Position) -> AsyncIterator[Chunk | Restart]:
    before = position.head
    if before is None:
        warn(read_warnings(schema + END))
    is_same = before is not None and list_columns(before + END) == list_columns(schema + END)
    return take_head(schema, position, is_same=is_same)


# All matches as CSV: resumed after the last whole record.
#
# The store writes a cursor into the last field of each record; it is taken out again. CSV has no
# mark of its end, and HTTP's own can be lost: a proxy that asks the store in HTTP/1.0 takes a
# broken connection for the end, and a compressed answer that is cut off is no error of httpx. So
# the end is where a page after the last record has nothing that was received before the stream
# began: what is received meanwhile may come behind the end, for as long as one asks.

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
