"""Text from outside, for a terminal: without what would steer it."""

from typing import Any
from unicodedata import east_asian_width


def make_printable(text: str, kept: str = "") -> str:
    """Return a text whose control and formatting characters are escaped, except those `kept`.

    Escape sequences move a cursor, and marks of direction turn a line around.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else _escape(c) for c in text)


def measure(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(1 + _is_wide(c) for c in text)


def shorten(text: str, width: int) -> str:
    """Return a text that takes at most so many columns; `…` stands for what is missing."""
    if measure(text) <= width:
        return text
    taken, kept = 0, ""
    for character in text:
        taken += 1 + _is_wide(character)
        if taken > width - 1:
            break
        kept += character
    return f"{kept}…"


def _is_wide(character: str) -> bool:
    return east_asian_width(character) in {"W", "F"}


def _escape(character: str) -> str:
    known: dict[str, Any] = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    number = ord(character)
    return str(known.get(character, f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"))
