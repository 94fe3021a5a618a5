"""Tensors of the Open Inference Protocol: JSON, raw bytes, or typed values.

Both transports use them. Nothing here raises on untrusted input. A tensor is divided along its
first dimension; `shape` is used only if the data agree with it.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Final, TypeAlias, TypeVar

from inference_store.inference import json_text

Value: TypeAlias = bool | int | float | bytes
Parameters: TypeAlias = Mapping[str, bytes]
"""Each value as JSON text, so that nothing in it is rounded (`parameter_text`)."""

CODES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "BF16": "H",
    "FP32": "f",
    "FP64": "d",
}
"""The struct code of each datatype of a fixed size; of BF16, the upper half of an FP32, that of its
bits. BYTES is the only other one."""
BYTES: Final = "BYTES"
MOST_ELEMENTS: Final = 1 << 20
"""The most elements of a tensor that is read, or written as JSON; a larger one stays raw bytes."""
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or an output. At most one of `data`, `raw`, `values` is set; none if it has no data.

    `shape` is what the sender claims: it need not match the data.
    """

    name: str = ""
    datatype: str = ""
    """The datatype as it was sent; any text."""
    shape: tuple[int, ...] = ()
    parameters: Parameters = field(default_factory=dict)
    position: int = field(default=0, compare=False)
    """Its place among the tensors of the request or the answer."""
    data: bytes | None = field(default=None, repr=False)
    """The unchanged JSON text of `data`, nested or flat (REST)."""
    raw: bytes | None = field(default=None, repr=False)
    """Little-endian and row-major; each BYTES element follows a 4-byte length (binary extension,
    `raw_input_contents`)."""
    values: Sequence[Value] | None = field(default=None, repr=False)
    """One value per element, flat (gRPC's typed contents); bytes for BYTES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """A request. Empty texts of protobuf are None here."""

    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    inputs: Sequence[Tensor] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResponse:
    """An answer, or an error in its body. Empty texts of protobuf are None here."""

    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[Tensor] = ()
    error: str | None = None
    """The reason of a failure that the answer reports in its body."""
    text: bytes | None = field(default=None, repr=False)
    """The unchanged answer, if it is only JSON; None over gRPC."""


def merge(responses: Sequence[InferResponse]) -> InferResponse:
    """Merge the answers of a stream: all outputs and parameters in order, else the first value.

    Of parameters with the same name, the last one wins.
    """
    parameters: dict[str, bytes] = {}
    for response in responses:
        parameters |= response.parameters
    return InferResponse(
        model=next((response.model for response in responses if response.model), None),
        version=next((response.version for response in responses if response.version), None),
        id=next((response.id for response in responses if response.id), None),
        parameters=parameters,
        outputs=[output for response in responses for output in response.outputs],
        error=next((response.error for response in responses if response.error is not None), None),
    )


def parameter_text(value: bool | int | float | str) -> bytes:
    """Return a parameter's value as JSON text, in ASCII."""
    return json.dumps(value).encode()


def value_of(text: bytes) -> object:
    """Return the value of JSON text that was read before, as a part of a body."""
    try:
        return json_text.read_json(text)
    except json_text.UnreadableJson:  # impossible: the whole was read
        return None


def size_of(datatype: str) -> int | None:
    """Return the bytes of an element; None for BYTES and unknown datatypes."""
    code = CODES.get(datatype)
    return None if code is None else struct.calcsize(f"<{code}")


def bytes_elements(raw: bytes) -> list[bytes] | None:
    """Return the elements of a raw BYTES tensor; None if the lengths do not add up, or there are
    too many."""
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        if len(raw) - at < _LENGTH.size or len(elements) == MOST_ELEMENTS:
            return None
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        if at > len(raw):
            return None
        elements.append(raw[at - length : at])
    return elements


def elements_at_most(datatype: str, raw: bytes) -> int:
    """Return how many elements raw bytes can hold."""
    return len(raw) // (_LENGTH.size if datatype == BYTES else size_of(datatype) or 1)


def decoded(datatype: str, raw: bytes) -> Sequence[Value] | None:
    """Return the elements of a raw tensor; None if the datatype is unknown or the bytes do not
    fit."""
    if datatype == BYTES:
        return bytes_elements(raw)
    size = size_of(datatype)
    if size is None or len(raw) % size:
        return None
    if datatype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        datatype, size, raw = "FP32", 4, bytes(wide)
    return struct.unpack(f"<{len(raw) // size}{CODES[datatype]}", raw)


def encoded(datatype: str, values: Sequence[Value]) -> bytes | None:
    """Return values as a raw tensor; None if the datatype is unknown or a value does not fit."""
    try:
        if datatype == BYTES:
            elements = [value for value in values if isinstance(value, bytes)]
            packed = b"".join(_LENGTH.pack(len(element)) + element for element in elements)
            return packed if len(elements) == len(values) else None
        if datatype == "BF16":
            wide = struct.pack(f"<{len(values)}f", *values)
            narrow = bytearray(2 * len(values))
            narrow[::2], narrow[1::2] = wide[2::4], wide[3::4]
            return bytes(narrow)
        return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)
    except (KeyError, struct.error, OverflowError):
        return None


Piece = TypeVar("Piece")
_NESTED: Final = re.compile(rb'["\[{]')
_OTHER: Final = re.compile(rb'["{]|\[\s*\]')
_LAYERS: Final = 8
"""The most nested lists of one item that are opened to reach BYTES elements."""


def texts(data: bytes, most: int | None = None) -> list[bytes]:
    """Return the JSON texts of the outermost elements of `data`; itself if it is not a list.

    `most`: return at most one more than this number.
    """
    root = json_text.root(data)
    text = data[root.start : root.end]
    if not text.startswith(b"["):
        return [text]
    inside = text[1:-1]
    if _NESTED.search(inside) is None:  # many times faster for a million numbers
        return [item.strip() for item in inside.split(b",")] if inside.strip() else []
    spans = islice(json_text.items(data, root), most and most + 1)
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
    root = json_text.root(data)
    if not data.startswith(b"[", root.start):
        return [data[root.start : root.end]]
    inside = data[root.start + 1 : root.end - 1]
    if _NESTED.search(inside) is None:
        return [b",".join(part).strip() for part in _cut(inside.split(b","), count)]
    spans = _cut(list(json_text.items(data, root)), count)
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
