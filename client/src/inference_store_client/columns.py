"""All matches as columns, in Arrow: resumed after the last whole batch. No I/O.

Batches come from one answer or from several that have the same columns. If a key came meanwhile, so
that a later answer has other columns, the stream begins again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from .arrow_batches import list_columns, read_batch, read_warnings
from .arrow_messages import END, Message, MessageDecoder, MessageKind
from .commands import Failure, Read, Steps
from .errors import ConnectionFailed
from .question import Question
from .resuming import Position, resume
from .settings import ClientSettings
from .store_warnings import warn
from .streaming import CUT

_CHANGED: Final = "the columns have changed since the stream began"


@dataclass(slots=True)
class _Columns:
    """What has come: the schema with an empty batch, and the batches after it."""

    schema: bytes | None = None
    batches: list[bytes] = field(default_factory=list)


def read_columns(
    question: Question, settings: ClientSettings, fields: Sequence[str] | None = None
) -> Steps[bytes]:
    """Return all matches as an Arrow IPC stream; `fields`: these columns alone.

    Raises StreamIncomplete, or the store's refusal.
    """
    columns = _Columns()
    make_request = partial(question.columns_request, fields)
    yield from resume(make_request, partial(_read_messages, columns), settings, Position())
    assert columns.schema is not None
    return b"".join([columns.schema, *columns.batches, END])


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
            if not _take(message, columns, position):
                return Failure(ConnectionFailed(_CHANGED))


def _take(message: Message, columns: _Columns, position: Position) -> bool:
    """Keep a message; False: its columns are others than those before, which are dropped."""
    if message.kind == MessageKind.SCHEMA:
        return _take_schema(message.content, columns, position)
    assert columns.schema is not None
    batch = read_batch(columns.schema + message.content + END)
    if batch.cursor is not None:
        columns.batches.append(message.content)
        position.received += batch.length
        position.move(batch.cursor)
    return True


def _take_schema(schema: bytes, columns: _Columns, position: Position) -> bool:
    if columns.schema is None:
        columns.schema = schema
        warn(read_warnings(schema + END))
        return True
    if list_columns(columns.schema + END) == list_columns(schema + END):
        return True
    columns.schema, columns.batches = None, []
    position.cursor, position.received = None, 0
    return False
