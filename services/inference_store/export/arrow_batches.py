"""Builds Arrow record batches from pages of values."""

from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import nanoarrow as na

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


class BatchBuilder:
    """Builds the record batches of one export, each with the same columns. They speak the Arrow
    PyCapsule interface."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._type = na.struct({column.name: _build_type(column) for column in columns})

    def build_schema(self, metadata: Mapping[str, str] | None = None) -> Any:
        """Return the schema with this metadata."""
        return na.Schema(self._type, metadata=metadata)

    def build(self, values: Sequence[Values], length: int, schema: Any = None) -> Any:
        """Return a batch of `length` rows: the values of each column; `schema`: with metadata."""
        pairs = zip(values, self._columns, strict=True)
        children = [_encode(items, column) for items, column in pairs]
        return na.c_array_from_buffers(
            schema or self._type, length, [None], null_count=0, children=children
        )


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
