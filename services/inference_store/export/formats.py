"""The formats of columns: Arrow IPC streams and CSV, in the one table that routes and docs read."""

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from io import BytesIO
from itertools import accumulate
from typing import Any, ClassVar, Final, Protocol

import nanoarrow as na
import orjson
from nanoarrow.ipc import StreamWriter

from .columns import Column, Kind, Values


class Encoder(Protocol):
    """Encodes pages of one export, each with the same columns."""

    has_cursors: ClassVar[bool] = False
    """Whether the last row of each page has a cursor, without being asked to."""
    has_room: ClassVar[bool] = False
    """Whether what comes before the first page can hold warnings."""

    def __init__(self, columns: Sequence[Column]) -> None: ...

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return what comes before the first page; `members`: warnings and the like."""

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return a page of `length` inferences: the values of each column."""

    def encode_end(self) -> bytes:
        """Return what comes after the last page."""


# An Arrow IPC stream: a schema, a record batch for each page, the end's mark. A stream that ends
# without its mark is not whole:
# https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format


class ArrowEncoder(Encoder):
    """Encodes pages of one export, each with the same columns."""

    has_cursors = has_room = True

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._type = na.struct({column.name: _build_type(column) for column in columns})
        self._schema = na.c_schema(self._type)
        self._written = BytesIO()
        self._writer = StreamWriter.from_writable(self._written)

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return the schema; `members` stand in its metadata, each as JSON."""
        metadata = {name: json.dumps(value, default=str) for name, value in members.items()}
        schema = na.Schema(self._type, metadata=metadata)
        return self._encode([[] for _ in self._columns], 0, schema)

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return the record batch of a page: the values of each column."""
        return self._encode(values, length, self._schema)

    def encode_end(self) -> bytes:
        """Return the end's mark."""
        self._writer.close()
        return self._take()

    def _encode(self, values: Sequence[Values], length: int, schema: Any) -> bytes:
        pairs = zip(values, self._columns, strict=True)
        children = [_encode(items, column) for items, column in pairs]
        batch = na.c_array_from_buffers(schema, length, [None], null_count=0, children=children)
        self._writer.write_stream(batch)
        return self._take()

    def _take(self) -> bytes:
        content = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return content


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SCALARS: Final[Mapping[Kind, Any]] = {
    Kind.TEXT: na.string(),
    Kind.INTEGER: na.int64(),
    Kind.FLOAT: na.float64(),
    Kind.BOOL: na.bool_(),
    Kind.TIME: na.timestamp("us", timezone="UTC"),
    Kind.BYTES: na.binary(),
}
_SCHEMAS: Final = {kind: na.c_schema(scalar) for kind, scalar in _SCALARS.items()}
_MOST_CACHED: Final = 64


@lru_cache(_MOST_CACHED)
def _build_schemas(column: Column) -> tuple[Any, Any]:
    """Return the schema of a column of lists, and of what is in them."""
    kind = _build_type(column)
    return na.c_schema(kind), na.c_schema(kind.value_type)


def _build_type(column: Column) -> Any:
    if column.kind is Kind.TEXTS:
        return na.list_(na.string())
    if column.kind is Kind.PREDICTIONS:
        return na.list_(na.struct({name: _SCALARS[kind] for name, kind in column.members}))
    return _SCALARS[column.kind]


def _encode(values: Values, column: Column) -> Any:
    if column.kind is Kind.TEXTS:
        texts = [text for items in values for text in items or ()]
        return _encode_lists(values, column, na.c_array(texts, _SCHEMAS[Kind.TEXT]))
    if column.kind is Kind.PREDICTIONS:
        return _encode_lists(values, column, _encode_predictions(values, column))
    return _encode_scalars(values, column.kind)


def _encode_scalars(values: Values, kind: Kind) -> Any:
    if values and not any(values) and values.count(None) == len(values):
        return _encode_nulls(len(values), kind)
    if kind is Kind.TIME:
        values = [None if at is None else (at - _EPOCH) // _MICROSECOND for at in values]
    return na.c_array(values, _SCHEMAS[kind])


@lru_cache(_MOST_CACHED)
def _encode_nulls(length: int, kind: Kind) -> Any:
    """Encode nulls alone, which most columns of most models are."""
    validity, offsets = bytes(-(-length // 8)), bytes(4 * (length + 1))
    data = [offsets, b""] if kind in {Kind.TEXT, Kind.BYTES} else [bytes(8 * length)]
    return na.c_array_from_buffers(_SCHEMAS[kind], length, [validity, *data], null_count=length)


def _encode_lists(values: Values, column: Column, child: Any) -> Any:
    """Encode lists; null is an empty one."""
    offsets = array("i", accumulate((len(items or ()) for items in values), initial=0))
    return na.c_array_from_buffers(
        _build_schemas(column)[0], len(values), [None, offsets], null_count=0, children=[child]
    )


def _encode_predictions(values: Values, column: Column) -> Any:
    predictions = [prediction for items in values for prediction in items]
    members = list(zip(*predictions, strict=True)) or [()] * len(column.members)
    children = [
        _encode_scalars(list(member), kind)
        for member, (_, kind) in zip(members, column.members, strict=True)
    ]
    _, schema = _build_schemas(column)
    return na.c_array_from_buffers(
        schema, len(predictions), [None], null_count=0, children=children
    )


# CSV (RFC 4180): a line of names, a line for each inference. Null is nothing and an empty text is
# `""`, so that the two differ. A spreadsheet may run a text that begins with `=`: the values are
# those of the store, unchanged.

_END: Final = "\r\n"


class CsvEncoder(Encoder):
    """Encodes pages of one export, each with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns

    def encode_head(self, members: Mapping[str, Any]) -> bytes:  # noqa: ARG002  (CSV has no room)
        """Return the line of names."""
        return _encode_lines([[_quote(column.name) for column in self._columns]])

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:  # noqa: ARG002
        """Return the lines of a page: the values of each column."""
        pairs = zip(values, self._columns, strict=True)
        return _encode_lines(zip(*(_spell(items, column) for items, column in pairs), strict=True))

    def encode_end(self) -> bytes:
        """Return nothing: CSV has no mark of its end."""
        return b""


def _encode_lines(rows: Any) -> bytes:
    text = "".join(f"{','.join(cells)}{_END}" for cells in rows)
    return text.encode("utf-8", "backslashreplace")


def _spell(values: Values, column: Column) -> list[str]:
    spell = _SPELLINGS[column.kind]
    if column.kind is Kind.PREDICTIONS:
        names = [name for name, _ in column.members]
        values = [[dict(zip(names, item, strict=True)) for item in items] for items in values]
    return ["" if value is None else spell(value) for value in values]


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _spell_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _spell_json(value: Any) -> str:
    return _quote(orjson.dumps(value).decode())


_SPELLINGS: Final[Mapping[Kind, Callable[[Any], str]]] = {
    Kind.TEXT: _quote,
    Kind.INTEGER: str,
    Kind.FLOAT: repr,
    Kind.BOOL: lambda value: "true" if value else "false",
    Kind.TIME: _spell_time,
    Kind.TEXTS: _spell_json,
    Kind.PREDICTIONS: _spell_json,
}


FORMATS: Final[Mapping[str, type[Encoder]]] = {
    "application/vnd.apache.arrow.stream": ArrowEncoder,
    "text/csv": CsvEncoder,
}
"""By media type."""
