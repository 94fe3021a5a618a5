"""The spans of the contents of tensors in a ModelInferRequest.

Data are looked for in them alone: the same bytes may stand in a shape or a name, too.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from inference_store.proxy.protocols.v2.tensors import BYTES, bytes_elements
from inference_store.store.json_spans import Span

from .protobuf_fields import Field, fields
from .search import Hole

_INPUTS, _RAW_CONTENTS = 5, 7
_DATATYPE, _CONTENTS = 2, 5
_FP32, _FP64 = 6, 7
_MOST_SPANS: Final = 10_000
# What surrounds base64 in an element.
_EMPTY: Final = re.compile(rb"(?:data:[^,]{0,200},)?={0,2}")


class Contents(NamedTuple):
    """The contents of a tensor."""

    spans: Sequence[Span]
    elements: Sequence[Span]
    """The spans without the lengths of raw BYTES."""
    reading: str
    """How its numbers are packed: one of READINGS."""


def tensor_contents(body: bytes) -> list[Contents] | None:
    """The contents of each tensor; None: they are too many, or cannot be told."""
    try:
        contents = _contents(body)
    except ValueError:
        return None
    spans = sum(len(each.elements) for each in contents or ())
    return contents if spans <= _MOST_SPANS else None


def _contents(body: bytes) -> list[Contents] | None:
    inputs, raw = [], []
    for field in fields(body, Span(0, len(body))):
        if field.number == _INPUTS:
            inputs.append(list(fields(body, field.value)))
        elif field.number == _RAW_CONTENTS:
            raw.append(field.value)
    typed = [list(_typed(body, tensor)) for tensor in inputs]
    if not raw:
        return [_of_typed(each) for each in typed]
    if len(raw) != len(inputs) or any(typed):
        return None
    return [_of_raw(body, *each) for each in zip(inputs, raw, strict=True)]


def _typed(body: bytes, tensor: Sequence[Field]) -> Iterator[Field]:
    contents = [each.value for each in tensor if each.number == _CONTENTS]
    return islice(chain.from_iterable(fields(body, each) for each in contents), _MOST_SPANS + 1)


def _of_typed(values: Sequence[Field]) -> Contents:
    spans = [each.value for each in values]
    number = values[0].number if values else 0
    return Contents(spans, spans, {_FP32: "FP32", _FP64: "FP64"}.get(number, "varints"))


def _of_raw(body: bytes, tensor: Sequence[Field], raw: Span) -> Contents:
    datatypes = [body[slice(*each.value)] for each in tensor if each.number == _DATATYPE]
    datatype = datatypes[-1].decode() if datatypes else ""
    elements = bytes_elements(body[slice(*raw)]) if datatype == BYTES else None
    if elements is None:
        return Contents([raw], [raw], datatype)
    spans, at = [], raw.start
    for element in elements:
        spans.append(Span(at + 4, at + 4 + len(element)))
        at = spans[-1].end
    return Contents([raw], spans, datatype)


def is_covered(body: bytes, span: Span, holes: Sequence[Hole]) -> bool:
    """Whether the holes, in order, take an element out of a message."""
    first = bisect_right(holes, span.start, key=lambda hole: hole.end)
    last = bisect_left(holes, span.end, key=lambda hole: hole.start)
    if first >= last:
        return span.start == span.end
    pieces, at = [], span.start
    for hole in holes[first:last]:
        pieces.append(body[at : hole.start])
        at = max(at, hole.end)
    return _EMPTY.fullmatch(b"".join((*pieces, body[at : span.end]))) is not None
