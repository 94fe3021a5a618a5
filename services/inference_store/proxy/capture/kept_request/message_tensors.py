"""The tensors of a ModelInferRequest: raw contents stand behind all of them, typed ones in each."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from inference_store.inference.json_spans import Span
from inference_store.proxy.protocols.protocol import Division

from .cuts import Cut, Undivided, cut_bytes, cut_varints
from .protobuf_fields import LENGTH_DELIMITED, Field, fields
from .rows import TEXTS, Packed, Separate, Tensor, Value, Values
from .values import MOST_VALUES, expect_few, raw_values

_INPUTS, _RAW_CONTENTS = 5, 7
_DATATYPE, _CONTENTS = 2, 5


class _Kind(NamedTuple):
    """A field of typed contents."""

    reading: str
    wire_type: int
    """Of a value that is not packed."""
    cut: Cut = cut_varints


_BYTES_CONTENTS: Final = 8
_KINDS: Final = {
    **dict.fromkeys(range(1, 6), _Kind("varints", 0)),
    6: _Kind("FP32", 5, cut_bytes),
    7: _Kind("FP64", 1, cut_bytes),
    _BYTES_CONTENTS: _Kind(TEXTS, LENGTH_DELIMITED),
}


class _Read(NamedTuple):
    """A tensor as it stands in the message."""

    whole: Span
    datatype: str
    contents: Sequence[Field]


def message_tensors(body: bytes, division: Division) -> list[Tensor]:
    """Raises Undivided."""
    try:
        read, raw = _read(body)
    except ValueError as exc:
        raise Undivided(f"the message's fields cannot be told: {exc}") from exc
    if not raw:
        return [Tensor(each.whole, each.datatype, _typed(each.contents)) for each in read]
    if any(each.contents for each in read):
        raise Undivided("the message has raw contents and typed ones")
    if len(raw) != len(read):
        raise Undivided("the message does not have raw contents for each tensor")
    return [
        Tensor(each.whole, each.datatype, raw_values(body, span, each.datatype, division))
        for each, span in zip(read, raw, strict=True)
    ]


def _read(body: bytes) -> tuple[list[_Read], list[Span]]:
    read, raw = [], []
    for field in fields(body, Span(0, len(body))):
        if field.number in (_INPUTS, _RAW_CONTENTS):
            _expect_length(field)
        if field.number == _INPUTS:
            read.append(_tensor(body, field))
        elif field.number == _RAW_CONTENTS:
            raw.append(field.value)
    return read, raw


def _tensor(body: bytes, tensor: Field) -> _Read:
    found: dict[int, list[Span]] = {_DATATYPE: [], _CONTENTS: []}
    for field in fields(body, tensor.value):
        if field.number in found:
            _expect_length(field)
            found[field.number].append(field.value)
    datatype = body[slice(*found[_DATATYPE][-1])] if found[_DATATYPE] else b""
    contents = chain.from_iterable(fields(body, each) for each in found[_CONTENTS])
    return _Read(tensor.whole, datatype.decode(), list(islice(contents, MOST_VALUES + 1)))


def _expect_length(field: Field) -> None:
    """A parser of protobuf leaves out what has another wire type."""
    if field.wire_type != LENGTH_DELIMITED:
        raise ValueError(f"field {field.number} is of wire type {field.wire_type}")


def _typed(values: Sequence[Field]) -> Values:
    if not values:
        return Separate((), TEXTS)
    expect_few(len(values))
    kinds = {(each.number, each.wire_type) for each in values}
    number, wire_type = kinds.pop()
    kind = _KINDS.get(number)
    if kinds or kind is None or wire_type not in (kind.wire_type, LENGTH_DELIMITED):
        raise Undivided("a tensor has contents of several types, or of an unknown one")
    if wire_type == kind.wire_type:
        return Separate([Value(each.whole, each.value) for each in values], kind.reading)
    if len(values) > 1:
        raise Undivided("the numbers of a tensor are packed in several parts")
    return Packed(values[0].value, kind.reading, kind.cut)
