"""Where the values of a JSON text stand, in bytes: to take or cut them out as they were written.

The text must be JSON, as `json_text.read_json` reads it, in UTF-8: what is wrong in it is not
noticed here. Nothing is decoded but names; nesting of any depth costs no stack.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from inference_store.inference.json_text import UnreadableJson, read_json

_MARK: Final = b"\xef\xbb\xbf"
# No pattern here can fail once it has taken something, so none ever backtracks; and a repeat of
# groups has a limit, since each round of it takes memory.
_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb'[^ \t\r\n,:"\[\]{}]*')
_ESCAPES: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*){0,999}', re.DOTALL)
# All but brackets and strings that are long or have escapes: those have a faster way.
_PLAIN: Final = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]{0,99}"|\[[^"\[\]{}]*\]){0,999}', re.DOTALL)


class Span(NamedTuple):
    """Where a value begins and ends."""

    start: int
    end: int


class Member(NamedTuple):
    """A member of an object."""

    name: str
    whole: Span
    """From its name's first quote to its value's end."""
    value: Span


def root(text: bytes, at: int = 0) -> Span:
    """The value that the whole text is, or what is behind a place in it."""
    return _value(text, _skip(text, len(_MARK) if text.startswith(_MARK, at) else at))


def members(text: bytes, span: Span) -> Iterator[Member]:
    """Each member of an object in order, repeated names and all; none of anything else."""
    if text[span.start : span.start + 1] != b"{":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        name = _value(text, at)
        value = _value(text, _skip(text, _skip(text, name.end) + 1))
        yield Member(_name(text[name.start : name.end]), Span(at, value.end), value)
        at = _skip(text, _skip(text, value.end) + 1)


def items(text: bytes, span: Span) -> Iterator[Span]:
    """Each element of a list; none of anything else."""
    if text[span.start : span.start + 1] != b"[":
        return
    at = _skip(text, span.start + 1)
    while at < span.end - 1:
        value = _value(text, at)
        yield value
        at = _skip(text, _skip(text, value.end) + 1)


def by_name(text: bytes, span: Span) -> dict[str, Span]:
    """The members' values; of a name that comes twice the last."""
    return {member.name: member.value for member in members(text, span)}


def _name(text: bytes) -> str:
    try:
        return str(read_json(text))
    except UnreadableJson:  # not in what is JSON
        return text.decode("latin-1")


def _skip(text: bytes, at: int) -> int:
    return _past(_BLANK, text, at)


def _past(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    """Where what the pattern takes from there ends."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _value(text: bytes, at: int) -> Span:
    """The value that begins there; never empty, so that every walk ends."""
    first = text[at : at + 1]
    if first in (b"{", b"["):
        return Span(at, _closed(text, at))
    if first == b'"':
        return Span(at, _quoted(text, at))
    return Span(at, max(_past(_SCALAR, text, at), at + 1))


def _quoted(text: bytes, start: int) -> int:
    """Where the string that begins there ends."""
    end = text.find(b'"', start + 1)  # images in base64: a hundred times faster than any pattern
    if end >= 0 and text.find(b"\\", start + 1, end) < 0:
        return end + 1
    before, at = start, start + 1
    while at > before:
        before, at = at, _past(_ESCAPES, text, at)
        if text.startswith(b'"', at):
            return at + 1
    return len(text)


def _closed(text: bytes, start: int) -> int:
    """Where the brackets opened at `start` are closed again."""
    depth, at = 1, start + 1
    while depth:
        at = _past(_PLAIN, text, at)
        first = text[at : at + 1]
        if first == b'"':
            at = _quoted(text, at)
        elif first in (b"[", b"{"):
            depth, at = depth + 1, at + 1
        elif first in (b"]", b"}"):
            depth, at = depth - 1, at + 1
        elif not first:
            break
    return at
