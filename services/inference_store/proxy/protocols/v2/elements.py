"""Divides a tensor along its first dimension, and counts its parts.

`shape` is used only if the data agree with it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Final, TypeVar

from inference_store.inference import json_spans
from inference_store.proxy.protocols.tensors import (
    BYTES,
    CODES,
    MOST_ELEMENTS,
    Tensor,
    Value,
    bytes_elements,
    size_of,
)

Piece = TypeVar("Piece")
_NESTED: Final = re.compile(rb'["\[{]')
_OTHER: Final = re.compile(rb'["{]|\[\s*\]')
_LAYERS: Final = 8
"""The most nested lists of one item that are opened to reach BYTES elements."""


def texts(data: bytes, most: int | None = None) -> list[bytes]:
    """Return the JSON texts of the outermost elements of `data`; itself if it is not a list.

    `most`: return at most one more than this number.
    """
    root = json_spans.root(data)
    text = data[root.start : root.end]
    if not text.startswith(b"["):
        return [text]
    inside = text[1:-1]
    if _NESTED.search(inside) is None:  # many times faster for a million numbers
        return [item.strip() for item in inside.split(b",")] if inside.strip() else []
    spans = islice(json_spans.items(data, root), most and most + 1)
    return [data[start:end] for start, end in spans]


def bytes_values(tensor: Tensor, most: int = MOST_ELEMENTS) -> Sequence[bytes | Value] | None:
    """Return the elements of a BYTES tensor: JSON texts, or bytes (`tensor.data` is None).

    `[["a", "b"]]` has two. If there are more than `most`, one more is returned, or all. None if it
    has no data, or they cannot be read.
    """
    if tensor.data is None:
        return tensor.values if tensor.raw is None else bytes_elements(tensor.raw)
    elements = texts(tensor.data, most)
    for _ in range(_LAYERS):
        if len(elements) != 1 or not elements[0].startswith(b"["):
            break
        elements = texts(elements[0], most)
    return elements


def first_dimension(tensor: Tensor) -> int | None:
    """Return the size of the first dimension; None if it is unknown."""
    if tensor.data is not None:
        elements = texts(tensor.data)
        nested = bool(elements) and elements[0].startswith(b"[")
        return len(elements) if nested else _find_first_dimension(tensor, len(elements))
    count = _count_elements(tensor)
    return None if count is None else _find_first_dimension(tensor, count)


def contradicts_shape(tensor: Tensor) -> bool:
    """Return whether a tensor of numbers has another number of values than its shape says. The
    shape of BYTES may be that of the decoded bytes."""
    if tensor.datatype not in CODES or not tensor.shape or min(tensor.shape) < 0:
        return False
    data = tensor.data
    if data is None:
        count = _count_elements(tensor)
    elif not data.strip(b"[] \t\r\n"):
        count = 0
    else:  # each list has one comma less than items
        count = None if _OTHER.search(data) else data.count(b",") + 1
    return count is not None and count != prod(tensor.shape)


def divide(tensor: Tensor, count: int) -> list[Tensor] | None:
    """Divide a tensor into `count` parts along its first dimension; None if it has another size."""
    if first_dimension(tensor) != count or not count:
        return None
    is_shape_right = tensor.shape[:1] in ((count,), (-1,))
    shape = (1, *tensor.shape[1:]) if is_shape_right else (1,)
    if tensor.data is not None:
        cut = _cut_text(tensor.data, count)
        return [replace(tensor, shape=shape, data=b"[" + part + b"]") for part in cut]
    if tensor.values is not None:
        return [replace(tensor, shape=shape, values=part) for part in _cut(tensor.values, count)]
    return [replace(tensor, shape=shape, raw=part) for part in _cut_raw(tensor, count)]


def _find_first_dimension(tensor: Tensor, count: int) -> int | None:
    """Return the first dimension of `count` flat elements."""
    if not tensor.shape or not count:
        return count
    first, *others = tensor.shape
    rest = prod(others)
    if first > 0 and first * rest == count:
        return first
    if tensor.datatype == BYTES:  # the shape of the decoded bytes: an image's height and width
        return count
    if first < 0 < rest and count % rest == 0:
        return count // rest
    return first if first > 0 and min(others, default=0) < 0 and count % first == 0 else None


def _count_elements(tensor: Tensor) -> int | None:
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
    """Cut JSON into `count` parts, unchanged in spelling."""
    root = json_spans.root(data)
    if not data.startswith(b"[", root.start):
        return [data[root.start : root.end]]
    inside = data[root.start + 1 : root.end - 1]
    if _NESTED.search(inside) is None:
        return [b",".join(part).strip() for part in _cut(inside.split(b","), count)]
    spans = _cut(list(json_spans.items(data, root)), count)
    return [data[part[0].start : part[-1].end] for part in spans]


def _cut_raw(tensor: Tensor, count: int) -> list[bytes]:
    raw = tensor.raw or b""
    if tensor.datatype != BYTES:
        size = len(raw) // count
        return [raw[at : at + size] for at in range(0, size * count, size)]
    sizes = [len(element) + 4 for element in bytes_elements(raw) or ()]
    parts, at = [], 0
    for part_sizes in _cut(sizes, count):
        parts.append(raw[at : at + sum(part_sizes)])
        at += sum(part_sizes)
    return parts
