"""The tensors of a ModelInferRequest: raw contents follow all of them, typed ones are in each."""

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
    """The wire type of a value that is not packed."""
    cut: Cut = cut_varints


_BYTES_CONTENTS: Final = 8
_KINDS: Final = {
    **dict.fromkeys(range(1, 6), _Kind("varints", 0)),
    6: _Kind("FP32", 5, cut_bytes),
    7: _Kind("FP64", 1, cut_bytes),
    _BYTES_CONTENTS: _Kind(TEXTS, LENGTH_DELIMITED),
}


class _MessageTensor(NamedTuple):
    """A tensor as the message holds it."""

    whole: Span
    datatype: str
    contents: Sequence[Field]


def message_tensors(body: bytes, division: Division) -> list[Tensor]:
    """Return the tensors of a message. Raises Undivided."""
    try:
        tensors, raw = _read_message(body)
    except ValueError as exc:
        raise Undivided(f"the message's fields cannot be read: {exc}") from exc
    if not raw:
        return [
            Tensor(tensor.whole, tensor.datatype, _read_typed(tensor.contents))
            for tensor in tensors
        ]
    if any(tensor.contents for tensor in tensors):
        raise Undivided("the message has raw contents and typed ones")
    if len(raw) != len(tensors):
        raise Undivided("the message does not have raw contents for each tensor")
    return [
        Tensor(tensor.whole, tensor.datatype, raw_values(body, span, tensor.datatype, division))
        for tensor, span in zip(tensors, raw, strict=True)
    ]


def _read_message(body: bytes) -> tuple[list[_MessageTensor], list[Span]]:
    tensors, raw = [], []
    for field in fields(body, Span(0, len(body))):
        if field.number in (_INPUTS, _RAW_CONTENTS):
            _expect_length(field)
        if field.number == _INPUTS:
            tensors.append(_read_tensor(body, field))
        elif field.number == _RAW_CONTENTS:
            raw.append(field.value)
    return tensors, raw


def _read_tensor(body: bytes, tensor: Field) -> _MessageTensor:
    spans: dict[int, list[Span]] = {_DATATYPE: [], _CONTENTS: []}
    for field in fields(body, tensor.value):
        if field.number in spans:
            _expect_length(field)
            spans[field.number].append(field.value)
    datatype = body[slice(*spans[_DATATYPE][-1])] if spans[_DATATYPE] else b""
    contents = chain.from_iterable(
        fields(body, contents_span) for contents_span in spans[_CONTENTS]
    )
    return _MessageTensor(tensor.whole, datatype.decode(), list(islice(contents, MOST_VALUES + 1)))


def _expect_length(field: Field) -> None:
    """Raise ValueError for another wire type, which a protobuf parser would ignore."""
    if field.wire_type != LENGTH_DELIMITED:
        raise ValueError(f"field {field.number} is of wire type {field.wire_type}")


def _read_typed(values: Sequence[Field]) -> Values:
    if not values:
        return Separate((), TEXTS)
    expect_few(len(values))
    kinds = {(value.number, value.wire_type) for value in values}
    number, wire_type = kinds.pop()
    kind = _KINDS.get(number)
    if kinds or kind is None or wire_type not in (kind.wire_type, LENGTH_DELIMITED):
        raise Undivided("a tensor has contents of several types, or of an unknown one")
    if wire_type == kind.wire_type:
        return Separate([Value(value.whole, value.value) for value in values], kind.reading)
    if len(values) > 1:
        raise Undivided("the numbers of a tensor are packed in several parts")
    return Packed(values[0].value, kind.reading, kind.cut)
