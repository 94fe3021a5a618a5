"""The spans of a protobuf message's fields."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from inference_store.inference.json_spans import Span

_FIXED: Final = {1: 8, 5: 4}
LENGTH_DELIMITED: Final = 2
"""The wire type of texts, bytes, messages and packed numbers."""


class Field(NamedTuple):
    """A field: its number, its wire type, its span with its tag, and the span of its value."""

    number: int
    wire_type: int
    whole: Span
    value: Span


def fields(message: bytes, span: Span) -> Iterator[Field]:
    """Yield the fields of a message in order. Raises ValueError for a group or a broken message."""
    at = span.start
    while at < span.end:
        tag, start = _read_varint(message, at)
        end = _find_end(message, start, tag & 7)
        if tag & 7 == LENGTH_DELIMITED:
            length, start = _read_varint(message, start)
            end = start + length
        if end > span.end:
            raise ValueError("a field ends after its message")
        yield Field(tag >> 3, tag & 7, Span(at, end), Span(start, end))
        at = end


def _find_end(message: bytes, at: int, wire_type: int) -> int:
    if wire_type in _FIXED:
        return at + _FIXED[wire_type]
    if wire_type in (0, LENGTH_DELIMITED):
        return _read_varint(message, at)[1]
    raise ValueError(f"wire type {wire_type}")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a varint's value and its end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at : at + 1]
        if not byte:
            break
        at += 1
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value, at
    raise ValueError("not a varint")
