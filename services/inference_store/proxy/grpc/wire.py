"""Reads single fields of a protobuf message without decoding the message.

Other fields are skipped by their lengths: the contents of a tensor are never read.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeAlias

Message: TypeAlias = bytes | memoryview
MOST_FIELDS: Final = 1_000
"""The most top-level fields that are read: all known writers put the names first."""
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


def read_texts(message: Message, numbers: Collection[int]) -> Mapping[int, str]:
    """Return the texts of these fields; of a repeated field the last one, as every parser does.

    A field that is missing, empty or not UTF-8 is left out. If the message is broken, only
    the fields before the break are read.
    """
    values: dict[int, Message] = {}
    for number, value in fields_of(message):
        if number in numbers:
            values[number] = value
    return {number: text for number, value in values.items() if (text := _decode(value))}


def _decode(value: Message) -> str | None:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return None


def fields_of(message: Message) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each length-delimited field; others are skipped."""
    message = memoryview(message)
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(message):
            return
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if at < 0 or kind not in {_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES}:
            return
        start, end = _find_span(message, at, kind)
        if not 0 <= end <= len(message):
            return
        if kind == _LENGTH:
            yield tag >> 3, message[start:end]
        at = end


def _find_span(message: Message, at: int, kind: int) -> tuple[int, int]:
    """Return the start and the end of a field's value; the end is -1 if it is broken."""
    if kind == _LENGTH:
        length, start = _read_varint(message, at)
        return start, start + length if start >= 0 else -1
    if kind == _VARINT:
        return at, _read_varint(message, at)[1]
    return at, at + (8 if kind == _EIGHT_BYTES else 4)


def _read_varint(message: Message, at: int) -> tuple[int, int]:
    """Return a number and the position after it; -1 if it is cut off or too long."""
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return 0, -1
