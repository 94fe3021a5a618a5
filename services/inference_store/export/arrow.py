"""Inferences as an Arrow IPC stream: a schema, a record batch for each page, the end's mark.

A stream that ends without its mark is not whole:
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

import json
from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import accumulate
from typing import Any, Final

import nanoarrow as na
from nanoarrow.ipc import StreamWriter

from .kinds import Column, Kind, Values

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SCALARS: Final[Mapping[Kind, Any]] = {
    Kind.TEXT: na.string(),
    Kind.INTEGER: na.int64(),
    Kind.FLOAT: na.float64(),
    Kind.BOOL: na.bool_(),
    Kind.TIME: na.timestamp("us", timezone="UTC"),
}


class ArrowEncoder:
    """Encodes pages of one export, each with the same columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._schema = na.struct({column.name: _build_type(column) for column in columns})
        self._written = BytesIO()
        self._writer = StreamWriter.from_writable(self._written)

    def encode_head(self, members: Mapping[str, Any]) -> bytes:
        """Return the schema; `members` stand in its metadata, each as JSON."""
        metadata = {name: json.dumps(value, default=str) for name, value in members.items()}
        schema = na.Schema(self._schema, metadata=metadata)
        empty = [_encode([], column) for column in self._columns]
        self._write(self._build_batch(0, empty, schema))
        return self._take()

    def encode_page(self, values: Sequence[Values], length: int) -> bytes:
        """Return the record batch of a page: the values of each column."""
        pairs = zip(values, self._columns, strict=True)
        self._write(self._build_batch(length, [_encode(items, column) for items, column in pairs]))
        return self._take()

    def encode_end(self) -> bytes:
        """Return the end's mark."""
        self._writer.close()
        return self._take()

    def _build_batch(self, length: int, children: Sequence[Any], schema: Any = None) -> Any:
        return na.c_array_from_buffers(
            schema or self._schema, length, [None], null_count=0, children=children
        )

    def _write(self, batch: Any) -> None:
        self._writer.write_stream(batch)

    def _take(self) -> bytes:
        content = self._written.getvalue()
        self._written.seek(0)
        self._written.truncate()
        return content


def _build_type(column: Column) -> Any:
    if column.kind is Kind.TEXTS:
        return na.list_(na.string())
    if column.kind is Kind.PREDICTIONS:
        return na.list_(na.struct({name: _SCALARS[kind] for name, kind in column.members}))
    return _SCALARS[column.kind]


def _encode(values: Values, column: Column) -> Any:
    if column.kind is Kind.TEXTS:
        texts = [text for items in values for text in items or ()]
        return _encode_lists(values, column, na.c_array(texts, na.string()))
    if column.kind is Kind.PREDICTIONS:
        return _encode_lists(values, column, _encode_predictions(values, column))
    return _encode_scalars(values, column.kind)


def _encode_scalars(values: Values, kind: Kind) -> Any:
    if values and not any(values) and values.count(None) == len(values):
        return _encode_nulls(len(values), kind)
    if kind is Kind.TIME:
        values = [None if at is None else (at - _EPOCH) // _MICROSECOND for at in values]
    return na.c_array(values, _SCALARS[kind])


def _encode_nulls(length: int, kind: Kind) -> Any:
    """Encode nulls alone, which most columns of most models are."""
    validity, offsets = bytes(-(-length // 8)), bytes(4 * (length + 1))
    data = [offsets, b""] if kind is Kind.TEXT else [bytes(8 * length)]
    return na.c_array_from_buffers(_SCALARS[kind], length, [validity, *data], null_count=length)


def _encode_lists(values: Values, column: Column, child: Any) -> Any:
    """Encode lists; null is an empty one."""
    offsets = array("i", accumulate((len(items or ()) for items in values), initial=0))
    return na.c_array_from_buffers(
        _build_type(column), len(values), [None, offsets], null_count=0, children=[child]
    )


def _encode_predictions(values: Values, column: Column) -> Any:
    predictions = [prediction for items in values for prediction in items]
    members = list(zip(*predictions, strict=True)) or [()] * len(column.members)
    children = [
        _encode_scalars(list(member), kind)
        for member, (_, kind) in zip(members, column.members, strict=True)
    ]
    kinds = na.struct({name: _SCALARS[kind] for name, kind in column.members})
    return na.c_array_from_buffers(kinds, len(predictions), [None], null_count=0, children=children)
