"""A tensor along its first dimension: how many there are, and each of them.

`shape` is believed only where the data agrees with it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Final, TypeVar

from inference_store.inference import json_spans

from .tensors import BYTES, MOST_ELEMENTS, Tensor, Value, bytes_elements, size_of

Piece = TypeVar("Piece")
_NESTED: Final = re.compile(rb'["\[{]')
_LAYERS: Final = 8
"""Lists of one list that are opened to come to BYTES elements."""


def texts(data: bytes, most: int | None = None) -> list[bytes]:
    """The JSON texts of the elements of `data` as it is nested; itself where it is no list.

    `most`: it is enough to know so many and that there is one more.
    """
    root = json_spans.root(data)
    found = data[root.start : root.end]
    if not found.startswith(b"["):
        return [found]
    inside = found[1:-1]
    if _NESTED.search(inside) is None:  # many times faster, for what may be a million numbers
        return [each.strip() for each in inside.split(b",")] if inside.strip() else []
    spans = islice(json_spans.items(data, root), most and most + 1)
    return [data[start:end] for start, end in spans]


def bytes_values(tensor: Tensor, most: int = MOST_ELEMENTS) -> Sequence[bytes | Value] | None:
    """The elements of a BYTES tensor: JSON texts, or bytes as they came (`tensor.data` is None).

    `[["a", "b"]]` has two. Of more than `most` one more is told, or all. None where it has no
    data, or that cannot be read.
    """
    if tensor.data is None:
        return tensor.values if tensor.raw is None else bytes_elements(tensor.raw)
    found = texts(tensor.data, most)
    for _ in range(_LAYERS):
        if len(found) != 1 or not found[0].startswith(b"["):
            break
        found = texts(found[0], most)
    return found


def first_dimension(tensor: Tensor) -> int | None:
    """How many there are along the first dimension; None where that cannot be told."""
    if tensor.data is not None:
        found = texts(tensor.data)
        nested = bool(found) and found[0].startswith(b"[")
        return len(found) if nested else _first(tensor, len(found))
    count = _count(tensor)
    return None if count is None else _first(tensor, count)


def divided(tensor: Tensor, count: int) -> list[Tensor] | None:
    """The tensor in `count` along its first dimension; None where it does not have as many."""
    if first_dimension(tensor) != count or not count:
        return None
    believed = tensor.shape[:1] in ((count,), (-1,))
    shape = (1, *tensor.shape[1:]) if believed else (1,)
    if tensor.data is not None:
        cut = _cut_text(tensor.data, count)
        return [replace(tensor, shape=shape, data=b"[" + each + b"]") for each in cut]
    if tensor.values is not None:
        return [replace(tensor, shape=shape, values=each) for each in _cut(tensor.values, count)]
    return [replace(tensor, shape=shape, raw=each) for each in _cut_raw(tensor, count)]


def _first(tensor: Tensor, count: int) -> int | None:
    """The first dimension of `count` flat elements."""
    if not tensor.shape or not count:
        return count
    first, *others = tensor.shape
    rest = prod(others)
    if first > 0 and first * rest == count:
        return first
    if tensor.datatype == BYTES:  # the shape of what the bytes become: an image's height and width
        return count
    if first < 0 < rest and count % rest == 0:
        return count // rest
    return first if first > 0 and min(others, default=0) < 0 and count % first == 0 else None


def _count(tensor: Tensor) -> int | None:
    if tensor.raw is None:
        return None if tensor.values is None else len(tensor.values)
    if tensor.datatype == BYTES:
        elements = bytes_elements(tensor.raw)
        return None if elements is None else len(elements)
    size = size_of(tensor.datatype)
    return None if size is None or len(tensor.raw) % size else len(tensor.raw) // size


def _cut(pieces: Sequence[Piece], count: int) -> list[Sequence[Piece]]:
    size = len(pieces) // count
    return [pieces[at : at + size] for at in range(0, size * count, size)]


def _cut_text(data: bytes, count: int) -> list[bytes]:
    """JSON in `count` parts, spelt as it came."""
    root = json_spans.root(data)
    if not data.startswith(b"[", root.start):
        return [data[root.start : root.end]]
    inside = data[root.start + 1 : root.end - 1]
    if _NESTED.search(inside) is None:
        return [b",".join(each).strip() for each in _cut(inside.split(b","), count)]
    spans = _cut(list(json_spans.items(data, root)), count)
    return [data[each[0].start : each[-1].end] for each in spans]


def _cut_raw(tensor: Tensor, count: int) -> list[bytes]:
    raw = tensor.raw or b""
    if tensor.datatype != BYTES:
        size = len(raw) // count
        return [raw[at : at + size] for at in range(0, size * count, size)]
    sizes = [len(each) + 4 for each in bytes_elements(raw) or ()]
    found, at = [], 0
    for each in _cut(sizes, count):
        found.append(raw[at : at + sum(each)])
        at += sum(each)
    return found
