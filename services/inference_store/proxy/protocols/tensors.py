"""Tensors of the Open Inference Protocol: JSON or raw bytes.

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
from typing import Any, Final, TypeAlias

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
    """An input or an output. At most one of `data` and `raw` is set; none if it has no data.

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
    """The unchanged JSON text of `data`, nested or flat, without blanks around it."""
    raw: bytes | None = field(default=None, repr=False)
    """Little-endian and row-major; each BYTES element follows a 4-byte length (binary extension,
    `raw_input_contents`, typed contents)."""
    is_typed: bool = False
    """True if it came as gRPC's typed contents: as a datum, `raw` is written as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A request or an answer: its tensors, and what it has beside them. Empty texts of protobuf are
    None here."""

    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    tensors: Sequence[Tensor] = ()
    error: str | None = None
    """The reason of a failure that an answer reports in its body."""
    text: bytes | None = field(default=None, repr=False)
    """The unchanged body, if it is only JSON; None over gRPC."""


def merge(answers: Sequence[Content]) -> Content:
    """Merge the answers of a stream: all outputs and parameters in order, else the first value.

    Of parameters with the same name, the last one wins.
    """
    return Content(
        model=next((each.model for each in answers if each.model), None),
        version=next((each.version for each in answers if each.version), None),
        id=next((each.id for each in answers if each.id), None),
        parameters={name: it for each in answers for name, it in each.parameters.items()},
        tensors=[output for each in answers for output in each.tensors],
        error=next((each.error for each in answers if each.error is not None), None),
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


def decode_raw(datatype: str, raw: bytes) -> Sequence[Value] | None:
    """Return the elements of raw bytes; None if they do not fit, or there may be too many."""
    if datatype == BYTES:
        return bytes_elements(raw)
    size = _SIZES.get(datatype)
    if size is None or len(raw) % size or len(raw) // size > MOST_ELEMENTS:
        return None
    if datatype == "BF16":
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        datatype, size, raw = "FP32", 4, bytes(wide)
    return struct.unpack(f"<{len(raw) // size}{CODES[datatype]}", raw)


_NESTED: Final = re.compile(rb'["\[{]')
_EMPTY: Final = re.compile(rb"\[\s*\]")
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


def bytes_values(tensor: Tensor, most: int = MOST_ELEMENTS) -> list[bytes] | None:
    """Return the elements of a BYTES tensor: JSON texts, or bytes (`tensor.data` is None).

    `[["a", "b"]]` has two. If there are more than `most`, one more is returned, or all. None if it
    has no data, or they cannot be read.
    """
    if tensor.data is None:
        return None if tensor.raw is None else bytes_elements(tensor.raw)
    elements = [tensor.data]
    for _ in range(_LAYERS):
        elements = [piece.strip() for piece in _list_pieces(elements[0], most)]
        if len(elements) != 1 or not elements[0].startswith(b"["):
            break
    return elements


def only_element(tensor: Tensor) -> bytes | None:
    """Return the element of a BYTES tensor that has one, as `bytes_values` does; else None."""
    elements = bytes_values(tensor, 1) if tensor.datatype == BYTES else None
    return elements[0] if elements is not None and len(elements) == 1 else None


def select_element(tensor: Tensor, element: bytes) -> Tensor:
    """Return the tensor with only this element of `bytes_values`."""
    if tensor.data is not None:
        return replace(tensor, shape=(1,), data=b"[" + element + b"]")
    return replace(tensor, shape=(1,), raw=LENGTH.pack(len(element)) + element)


def _count_elements(tensor: Tensor) -> int | None:
    """Return the number of a tensor's elements, in JSON of numbers; None if it is unknown."""
    if (data := tensor.data) is not None:
        if not data.strip(b"[] \t\r\n"):
            return 0
        # each list has one comma less than items
        are_numbers = b'"' not in data and b"{" not in data and not _EMPTY.search(data)
        return data.count(b",") + 1 if are_numbers else None
    if tensor.datatype == BYTES:
        elements = bytes_values(tensor)
        return None if elements is None else len(elements)
    raw, size = tensor.raw, _SIZES.get(tensor.datatype)
    return None if raw is None or size is None or len(raw) % size else len(raw) // size


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


def divide(tensor: Tensor, count: int) -> list[Tensor]:
    """Divide a tensor into `count` parts along its first dimension; into none if it has another
    size."""
    if first_dimension(tensor) != count or not count:
        return []
    is_shape_right = tensor.shape[:1] in ((count,), (-1,))
    shape = (1, *tensor.shape[1:]) if is_shape_right else (1,)
    if tensor.data is not None:
        cut = _cut(_list_pieces(tensor.data), count)
        texts = [b"[" + b",".join(part).strip() + b"]" for part in cut]
        return [replace(tensor, shape=shape, data=text) for text in texts]
    if tensor.datatype == BYTES:
        lists = _cut(bytes_values(tensor) or (), count)
        return [replace(tensor, shape=shape, raw=encoded(BYTES, part)) for part in lists]
    return [replace(tensor, shape=shape, raw=part) for part in _cut(tensor.raw or b"", count)]


def _cut(pieces: Any, count: int) -> list[Any]:
    size = len(pieces) // count
    return [pieces[at : at + size] for at in range(0, size * count, size)]
