"""Single text fields of a protobuf message, found without decoding the message.

Fields are stepped over by their lengths: what a tensor holds is never looked at.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

MOST_FIELDS: Final = 1_000
"""So many top-level fields are looked at: the names stand first in what everybody writes."""
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


def texts(message: bytes, numbers: Collection[int]) -> Mapping[int, str]:
    """The texts of these fields, of one that repeats the last, as every parser has it.

    A field that is not there, is empty or is not UTF-8 is left out. Of a message that is broken:
    what stands before that.
    """
    found: dict[int, bytes] = {}
    for number, start, end in _fields(message):
        if number in numbers:
            found[number] = message[start:end]
    return {number: text for number, value in found.items() if (text := _text(value))}


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _fields(message: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each field of a length; others are stepped over."""
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(message):
            return
        tag, at = _varint(message, at)
        kind = tag & 7
        if at < 0 or kind not in {_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES}:
            return
        start, end = _span(message, at, kind)
        if not 0 <= end <= len(message):
            return
        if kind == _LENGTH:
            yield tag >> 3, start, end
        at = end


def _span(message: bytes, at: int, kind: int) -> tuple[int, int]:
    """Where a field's value starts and ends; ends at -1 where it is broken."""
    if kind == _LENGTH:
        length, start = _varint(message, at)
        return start, start + length if start >= 0 else -1
    if kind == _VARINT:
        return at, _varint(message, at)[1]
    return at, at + (8 if kind == _EIGHT_BYTES else 4)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it; -1: it is broken off or too long."""
    value = 0
    for place, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return 0, -1
