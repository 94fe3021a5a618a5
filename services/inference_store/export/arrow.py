"""Inferences as an Arrow IPC stream: a schema, a record batch for each page, the end's mark.

A stream that ends without its mark is not whole:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from io import BytesIO
from itertools import accumulate
from typing import Any, Final

import nanoarrow as na
from nanoarrow.ipc import StreamWriter

from .kinds import Column, Kind, Values


class ArrowEncoder:
    """Encodes pages of one export, each with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._batches = BatchBuilder(columns)
        self._written = BytesIO()
        self._writer = StreamWriter.from_writable(self._written)

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return the schema; `members` stand in its metadata, each as JSON."""
        metadata = {name: json.dumps(value, default=str) for name, value in members.items()}
        schema = self._batches.build_schema(metadata)
        self._write(self._batches.build([[] for _ in self._columns], 0, schema))
        return self._take()

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return the record batch of a page: the values of each column."""
        self._write(self._batches.build(values, length))
        return self._take()

    def encode_end(self) -> bytes:
        """Return the end's mark."""
        self._writer.close()
        return self._take()

    def _write(self, batch: Any) -> None:
        self._writer.write_stream(batch)

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
_NUMBERS: Final = {Kind.INTEGER: "q", Kind.FLOAT: "d", Kind.TIME: "q"}
"""As `array` has them: 64 bits."""
_MOST_CACHED: Final = 64


class BatchBuilder:
    """Builds the record batches of one export, each with the same columns. They speak the Arrow
    PyCapsule interface."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._type = na.struct({column.name: _build_type(column) for column in columns})
        self._schema = na.c_schema(self._type)

    def build_schema(self, metadata: Mapping[str, str] | None = None) -> Any:
        """Return the schema with this metadata."""
        return na.Schema(self._type, metadata=metadata)

    def build(self, values: Sequence[Values], length: int, schema: Any = None) -> Any:
        """Return a batch of `length` rows: the values of each column; `schema`: with metadata."""
        pairs = zip(values, self._columns, strict=True)
        children = [_encode(items, column) for items, column in pairs]
        return na.c_array_from_buffers(
            schema or self._schema, length, [None], null_count=0, children=children
        )


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
    if kind in _NUMBERS:
        return _encode_numbers(values, kind)
    if kind is Kind.BYTES:
        return _encode_bytes(values)
    return na.c_array(values, _SCHEMAS[kind])


def _encode_numbers(values: Values, kind: Kind) -> Any:
    """Encode numbers at a third of what nanoarrow's own builder costs."""
    code, nulls, validity = _NUMBERS[kind], 0, None
    try:
        numbers = array(code, values)
    except TypeError:  # there are nulls
        numbers = array(code, [0 if value is None else value for value in values])
        nulls, validity = values.count(None), _pack_validity(values)
    return na.c_array_from_buffers(
        _SCHEMAS[kind], len(values), [validity, numbers], null_count=nulls
    )


def _encode_bytes(values: Values) -> Any:
    """Encode contents of blobs, which nanoarrow's own builder copies once more."""
    contents = [content or b"" for content in values]
    offsets = array("i", accumulate(map(len, contents), initial=0))
    nulls = values.count(None)
    buffers = [_pack_validity(values) if nulls else None, offsets, b"".join(contents)]
    return na.c_array_from_buffers(_SCHEMAS[Kind.BYTES], len(values), buffers, null_count=nulls)


def _pack_validity(values: Values) -> bytes:
    """Return a bit for each value, 1 unless it is null; the first is the lowest."""
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(bits, 2).to_bytes(-(-len(values) // 8), "little")


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
