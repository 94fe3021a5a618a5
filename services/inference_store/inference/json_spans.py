"""The spans of values in a JSON text, in bytes: to take or cut them out unchanged.

The text must be JSON, as `json_text.read_json` reads it, in UTF-8: errors are not noticed here.
Only names are decoded; nesting of any depth needs no stack.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from inference_store.inference.json_text import UnreadableJson, read_json

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# No pattern here can fail after a partial match, so none ever backtracks; and a repetition of
# groups has a limit, since each round of it takes memory.
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^ \t\r\n,:"\[\]{}]*')
_ESCAPES: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,999}', re.DOTALL)
# Everything but brackets, and strings that are long or have escapes: there is a faster way for
# those.
_PLAIN: Final = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]{0,99}"|\[[^"\[\]{}]*\]){0,999}', re.DOTALL)


class Span(NamedTuple):
    """The start and the end of a value."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object."""

    name: str
    whole: Span
    """From its name's first quote to its value's end."""
    value: Span


def root(text: bytes, at: int = 0) -> Span:
    """Return the span of the whole text's value, or of the value after a position."""
    return _value(
        text, _skip(text, len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK, at) else at)
    )


def members(text: bytes, span: Span) -> Iterator[Member]:
    """Yield each member of an object in order, including repeated names; nothing for other
    values."""
    if text[span.start : span.start + 1] != b"{":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        name = _value(text, at)
        value = _value(text, _skip(text, _skip(text, name.end) + 1))
        yield Member(_name(text[name.start : name.end]), Span(at, value.end), value)
        at = _skip(text, _skip(text, value.end) + 1)


def items(text: bytes, span: Span) -> Iterator[Span]:
    """Yield the span of each element of a list; nothing for other values."""
    if text[span.start : span.start + 1] != b"[":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        value = _value(text, at)
        yield value
        at = _skip(text, _skip(text, value.end) + 1)


def by_name(text: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of the members' values; of a repeated name the last."""
    return {member.name: member.value for member in members(text, span)}


def _name(text: bytes) -> str:
    try:
        return str(read_json(text))
    except UnreadableJson:  # impossible in JSON
        return text.decode("latin-1")


def _skip(text: bytes, at: int) -> int:
    return _match_end(_BLANK, text, at)


def _match_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _value(text: bytes, at: int) -> Span:
    """Return the span of the value at a position; never empty, so that every loop ends."""
    first = text[at : at + 1]
    if first in (b"{", b"["):
        return Span(at, _closed(text, at))
    if first == b'"':
        return Span(at, _skip_text(text, at))
    return Span(at, max(_match_end(_SCALAR, text, at), at + 1))


def _skip_text(text: bytes, start: int) -> int:
    end = text.find(b'"', start + 1)  # images in base64: a hundred times faster than any pattern
    if end >= 0 and text.find(b"\\", start + 1, end) < 0:
        return end + 1
    before, at = start, start + 1
    while at > before:
        before, at = at, _match_end(_ESCAPES, text, at)
        if text.startswith(b'"', at):
            return at + 1
    return len(text)


def _closed(text: bytes, start: int) -> int:
    depth, at = 1, start + 1
    while depth:
        at = _match_end(_PLAIN, text, at)
        first = text[at : at + 1]
        if first == b'"':
            at = _skip_text(text, at)
        elif first in (b"[", b"{"):
            depth, at = depth + 1, at + 1
        elif first in (b"]", b"}"):
            depth, at = depth - 1, at + 1
        elif not first:
            break
    return at
