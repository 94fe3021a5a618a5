"""Tensors of the Open Inference Protocol: JSON, raw bytes, or typed values.

Both transports use them. Nothing here raises on untrusted input, and no value is read before it is
asked for. A tensor is divided along its first dimension; `shape` is used only if the data agree
with it.
"""

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any, Final, TypeAlias, TypeVar

from inference_store.inference import json_text
from inference_store.inference.stored_requests import BYTES, CODES, LENGTH, encoded

Value: TypeAlias = bool | int | float | bytes
Parameters: TypeAlias = Mapping[str, bytes]
"""Each value as JSON text, so that nothing in it is rounded (`parameter_text`)."""

_SIZES: Final = {datatype: struct.calcsize(f"<{code}") for datatype, code in CODES.items()}
MOST_ELEMENTS: Final = 1 << 20
"""The most elements of a tensor that is read, or written as JSON; a larger one stays raw bytes."""


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
    """The unchanged JSON text of `data`, nested or flat, without blanks around it (REST)."""
    raw: bytes | None = field(default=None, repr=False)
    """Little-endian and row-major; each BYTES element follows a 4-byte length (binary extension,
    `raw_input_contents`)."""
    values: Sequence[Value] | None = field(default=None, repr=False)
    """One value per element, flat (gRPC's typed contents); bytes for BYTES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What a request and an answer have beside tensors. Empty texts of protobuf are None here."""

    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest(_Head):
    """A request."""

    inputs: Sequence[Tensor] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResponse(_Head):
    """An answer, or an error in its body."""

    outputs: Sequence[Tensor] = ()
    error: str | None = None
    """The reason of a failure that the answer reports in its body."""
    text: bytes | None = field(default=None, repr=False)
    """The unchanged answer, if it is only JSON; None over gRPC."""


def merge(responses: Sequence[InferResponse]) -> InferResponse:
    """Merge the answers of a stream: all outputs and parameters in order, else the first value.

    Of parameters with the same name, the last one wins.
    """
    return InferResponse(
        model=next((each.model for each in responses if each.model), None),
        version=next((each.version for each in responses if each.version), None),
        id=next((each.id for each in responses if each.id), None),
        parameters={name: it for each in responses for name, it in each.parameters.items()},
        outputs=[output for each in responses for output in each.outputs],
        error=next((each.error for each in responses if each.error is not None), None),
    )


def parameter_text(value: object) -> bytes:
    """Return a value as JSON text, in ASCII; NaN and infinities as Python writes them."""
    return json.dumps(value).encode()


def value_of(text: bytes) -> Any:
    """Return the value of JSON text that was read before, as a part of a body."""
    try:
        return json_text.read_json(text)
    except json_text.UnreadableJson:  # impossible: the whole was read
        return None


def bytes_elements(raw: bytes) -> list[bytes] | None:
    """Return the elements of raw BYTES; None if the lengths do not add up, or are too many."""
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        if len(raw) - at < LENGTH.size or len(elements) == MOST_ELEMENTS:
            return None
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size + length
        if at > len(raw):
            return None
        elements.append(raw[at - length : at])
    return elements


def decoded(datatype: str, raw: bytes) -> Sequence[Value] | None:
    """Return the elements of raw bytes; None if they do not fit, or there may be too many."""
    size = _SIZES.get(datatype)
    if len(raw) // (size or LENGTH.size) > MOST_ELEMENTS:
        return None
    if datatype == BYTES:
        return bytes_elements(raw)
    if size is None or len(raw) % size:
        return None
    if datatype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        datatype, size, raw = "FP32", 4, bytes(wide)
    return struct.unpack(f"<{len(raw) // size}{CODES[datatype]}", raw)


Piece = TypeVar("Piece")
_NESTED: Final = re.compile(rb'["\[{]')
_OTHER: Final = re.compile(rb'["{]|\[\s*\]')
_LAYERS: Final = 9
"""The most nested lists that are opened to reach BYTES elements."""


def _list_pieces(data: bytes, most: int | None = None) -> list[bytes]:
    """Return the JSON texts of the outermost elements of `data` with the blanks around them, so
    that commas between them give the list's content; itself if it is not a list.

    `most`: return at most one more than this number.
    """
    if not data.startswith(b"["):
        return [data]
    inside = data[1:-1]
    if _NESTED.search(inside) is None:  # many times faster for a million numbers
        return inside.split(b",") if inside.strip() else []
    pieces, at = [], 1
    whole = json_text.Span(0, len(data))
    for span in islice(json_text.items(data, whole), most and most + 1):
        comma = data.find(b",", span.end)
        end = comma if comma > 0 else len(data) - 1
        pieces.append(data[at:end])
        at = end + 1
    return pieces


def bytes_values(tensor: Tensor, most: int = MOST_ELEMENTS) -> Sequence[bytes | Value] | None:
    """Return the elements of a BYTES tensor: JSON texts, or bytes (`tensor.data` is None).

    `[["a", "b"]]` has two. If there are more than `most`, one more is returned, or all. None if it
    has no data, or they cannot be read.
    """
    if tensor.data is None:
        return tensor.values if tensor.raw is None else bytes_elements(tensor.raw)
    elements = [tensor.data]
    for _ in range(_LAYERS):
        elements = [piece.strip() for piece in _list_pieces(elements[0], most)]
        if len(elements) != 1 or not elements[0].startswith(b"["):
            break
    return elements


def _count_elements(tensor: Tensor) -> int | None:
    """Return the number of a tensor's elements, in JSON of numbers; None if it is unknown."""
    if tensor.data is not None:
        if not tensor.data.strip(b"[] \t\r\n"):
            return 0
        # each list has one comma less than items
        return None if _OTHER.search(tensor.data) else tensor.data.count(b",") + 1
    if tensor.raw is None or tensor.datatype == BYTES:
        elements = bytes_values(tensor)
        return None if elements is None else len(elements)
    size = _SIZES.get(tensor.datatype)
    return None if size is None or len(tensor.raw) % size else len(tensor.raw) // size


def contradicts_shape(tensor: Tensor) -> bool:
    """Return whether a tensor of numbers has another number of values than its shape says. The
    shape of BYTES may be that of the decoded bytes."""
    if tensor.datatype not in CODES or not tensor.shape or min(tensor.shape) < 0:
        return False
    return _count_elements(tensor) not in (None, prod(tensor.shape))


def first_dimension(tensor: Tensor) -> int | None:
    """Return the size of the first dimension; None if it is unknown."""
    pieces = None if tensor.data is None else _list_pieces(tensor.data)
    count = _count_elements(tensor) if pieces is None else len(pieces)
    is_nested = (pieces or [b""])[0].lstrip().startswith(b"[")
    if is_nested or not tensor.shape or not count:
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


def divide(tensor: Tensor, count: int) -> list[Tensor] | None:
    """Divide a tensor into `count` parts along its first dimension; None if it has another size."""
    if first_dimension(tensor) != count or not count:
        return None
    parts: Sequence[Any]
    if tensor.data is not None:
        cut = _cut(_list_pieces(tensor.data), count)
        form, parts = "data", [b"[" + b",".join(part).strip() + b"]" for part in cut]
    elif tensor.values is not None:
        form, parts = "values", _cut(tensor.values, count)
    elif tensor.datatype == BYTES:
        elements = bytes_elements(tensor.raw or b"") or ()
        form, parts = "raw", [encoded(BYTES, part) for part in _cut(elements, count)]
    else:
        form, parts = "raw", _cut(tensor.raw or b"", count)
    is_shape_right = tensor.shape[:1] in ((count,), (-1,))
    shape = (1, *tensor.shape[1:]) if is_shape_right else (1,)
    changes: list[dict[str, Any]] = [{form: part} for part in parts]
    return [replace(tensor, shape=shape, **change) for change in changes]


def _cut(pieces: Sequence[Piece], count: int) -> list[Sequence[Piece]]:
    size = len(pieces) // count
    return [pieces[at : at + size] for at in range(0, size * count, size)]
