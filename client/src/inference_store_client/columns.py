"""All matches as columns, in Arrow: resumed after the last whole batch. No I/O.

Batches come from one answer or from several that have the same columns. If a key came meanwhile, so
that a later answer has other columns, the stream begins again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .arrow_batches import list_columns, read_batch, read_warnings
from .arrow_messages import END, Message, MessageDecoder, MessageKind
from .chunks import RESTART, Chunk, accept_delivered
from .commands import Deliver, Failure, Read, Steps
from .errors import ConnectionFailed
from .question import Question
from .resuming import Position, resume
from .settings import ClientSettings
from .store_warnings import warn
from .streaming import CUT

CHANGED: Final = "the columns have changed since the stream began"


@dataclass(slots=True)
class _Columns:
    """The message with the columns, once it has come."""

    schema: bytes | None = None


def read_columns(
    question: Question, settings: ClientSettings, fields: Sequence[str] | None = None
) -> Steps[bytes]:
    """Return all matches as an Arrow IPC stream; `fields`: these columns alone.

    Raises StreamIncomplete, or the store's refusal.
    """
    pieces: list[bytes] = []

    def accept(item: Any) -> None:
        if item is RESTART:
            pieces.clear()
        else:
            pieces.append(item.content)

    yield from accept_delivered(stream_columns(question, settings, fields), accept)
    return b"".join(pieces)


def stream_columns(
    question: Question, settings: ClientSettings, fields: Sequence[str] | None = None
) -> Steps[None]:
    """Deliver the pieces of an Arrow IPC stream: a Chunk each, or RESTART."""
    make_request = partial(question.columns_request, fields)
    yield from resume(make_request, partial(_read_messages, _Columns()), settings, Position())
    yield Deliver([Chunk(END)])


def _read_messages(columns: _Columns, position: Position) -> Steps[Failure | None]:
    decoder = MessageDecoder()
    while True:
        piece = yield Read()
        if isinstance(piece, Failure):
            return piece
        if not piece:
            return Failure(ConnectionFailed(CUT))
        assert isinstance(piece, bytes)
        for message in decoder.feed(piece):
            if message.kind == MessageKind.END:
                return None
            if not (yield from _take(message, columns, position)):
                return Failure(ConnectionFailed(CHANGED))


def _take(message: Message, columns: _Columns, position: Position) -> Steps[bool]:
    """Deliver a message; False: its columns are others than those before, which are void."""
    if message.kind == MessageKind.SCHEMA:
        return (yield from _take_schema(message.content, columns, position))
    assert columns.schema is not None
    batch = read_batch(columns.schema + message.content + END)
    if batch.cursor is not None:
        yield Deliver([Chunk(message.content, batch.length)])
        position.received += batch.length
        position.move(batch.cursor)
    return True


def _take_schema(schema: bytes, columns: _Columns, position: Position) -> Steps[bool]:
    if columns.schema is None:
        columns.schema = schema
        warn(read_warnings(schema + END))
        yield Deliver([Chunk(schema)])
        return True
    if list_columns(columns.schema + END) == list_columns(schema + END):
        return True
    columns.schema = None
    position.cursor, position.received = None, 0
    yield Deliver([RESTART])
    return False
