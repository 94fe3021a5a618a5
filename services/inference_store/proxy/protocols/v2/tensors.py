"""Tensors of the Open Inference Protocol, however they came: JSON, raw bytes, or typed values.

They serve both transports. Nothing here raises on what strangers sent.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Value: TypeAlias = bool | int | float | bytes
Parameters: TypeAlias = Mapping[str, bytes]
"""Each value as the JSON text that it is, so that nothing in it is rounded (`parameter_text`)."""

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
    "FP32": "f",
    "FP64": "d",
}
"""The struct code of each datatype of a fixed size. The thirteenth is BYTES."""
BYTES: Final = "BYTES"
MOST_ELEMENTS: Final = 1 << 20
"""Of a tensor that is looked into, or written as JSON; a larger one stays raw bytes."""
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or an output. At most one of `data`, `raw`, `values` is set; none: it has no data.

    `shape` says what the sender claims: it need not match the data.
    """

    name: str = ""
    datatype: str = ""
    """As it was sent; any text."""
    shape: tuple[int, ...] = ()
    parameters: Parameters = field(default_factory=dict)
    data: bytes | None = field(default=None, repr=False)
    """The JSON text of `data` as it came, nested or flat (REST)."""
    raw: bytes | None = field(default=None, repr=False)
    """Little-endian and row-major; BYTES elements behind a 4-byte length each (binary extension,
    `raw_input_contents`)."""
    values: Sequence[Value] | None = field(default=None, repr=False)
    """One value an element, flat (gRPC's typed contents); bytes for BYTES."""


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
    """An answer; or what failed, in-band. Empty texts of protobuf are None here."""

    model: str | None = None
    version: str | None = None
    id: str | None = None
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[Tensor] = ()
    error: str | None = None
    """The answer says in-band that it failed, and why."""
    text: bytes | None = field(default=None, repr=False)
    """The answer as it came, where that is all of it and it is JSON; None over gRPC."""


def merged(responses: Sequence[InferResponse]) -> InferResponse:
    """The answers of a stream as one: all outputs and parameters in order, of the rest the first.

    The last of parameters of one name wins.
    """
    parameters: dict[str, bytes] = {}
    for each in responses:
        parameters |= each.parameters
    return InferResponse(
        model=next((each.model for each in responses if each.model), None),
        version=next((each.version for each in responses if each.version), None),
        id=next((each.id for each in responses if each.id), None),
        parameters=parameters,
        outputs=[output for each in responses for output in each.outputs],
        error=next((each.error for each in responses if each.error is not None), None),
    )


def parameter_text(value: bool | int | float | str) -> bytes:
    """A parameter's value as JSON text; ASCII, whatever is in it."""
    return json.dumps(value).encode()


def size_of(datatype: str) -> int | None:
    """Bytes of an element; None of BYTES and unknown datatypes."""
    code = CODES.get(datatype)
    return None if code is None else struct.calcsize(f"<{code}")


def bytes_elements(raw: bytes) -> list[bytes] | None:
    """The elements of a raw BYTES tensor; None where the lengths do not add up, or of too many."""
    found: list[bytes] = []
    at = 0
    while at < len(raw):
        if len(raw) - at < _LENGTH.size or len(found) == MOST_ELEMENTS:
            return None
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size + length
        if at > len(raw):
            return None
        found.append(raw[at - length : at])
    return found


def elements_at_most(datatype: str, raw: bytes) -> int:
    """How many elements raw bytes can hold."""
    return len(raw) // (_LENGTH.size if datatype == BYTES else size_of(datatype) or 1)


def decoded(datatype: str, raw: bytes) -> Sequence[Value] | None:
    """The elements of a raw tensor; None where the datatype is unknown or the bytes do not fit."""
    if datatype == BYTES:
        return bytes_elements(raw)
    size = size_of(datatype)
    if size is None or len(raw) % size:
        return None
    return struct.unpack(f"<{len(raw) // size}{CODES[datatype]}", raw)


def encoded(datatype: str, values: Sequence[Value]) -> bytes | None:
    """Values as a raw tensor; None where the datatype is unknown or a value does not fit."""
    try:
        if datatype == BYTES:
            found = [each for each in values if isinstance(each, bytes)]
            packed = b"".join(_LENGTH.pack(len(each)) + each for each in found)
            return packed if len(found) == len(values) else None
        return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)
    except (KeyError, struct.error, OverflowError):
        return None
