"""Tensors of the Open Inference Protocol: JSON, raw bytes, or typed values.

Both transports use them. Nothing here raises on untrusted input.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

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
