"""Literals of text and JSON filters: numbers, dates, times, texts with escapes."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.iso_durations import read_duration
from inference_store.inference.json_text import exact, storable
from inference_store.inference.metadata.values import MetadataCaps

from .refusal import Refusal
from .tree import Instant, Scalar, SourceRange

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_TIMESTAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]((?!24)\d\d:\d\d:\d\d)(?:\.(\d{1,6})0*)?(?:[Zz]|([+-]\d\d:\d\d))",
    re.ASCII,
)
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "'": "'", "\\": "\\",
}  # fmt: skip
_ESCAPED: Final = re.compile(r"''|\\([abtnvfr'\\])")
_TO_ESCAPE: Final = re.compile(r"\\(?=[abtnvfr'\\\a\b\t\n\v\f\r]|\Z)|['\a\b\t\n\v\f\r]")
_ESCAPE_OF: Final = {meant: f"\\{letter}" for letter, meant in _ESCAPES.items()} | {"'": "''"}
CAPS: Final = MetadataCaps()
"""The caps of stored numbers: every stored number can be written in a filter."""


def number(text: str, at: SourceRange) -> Decimal:
    """Return the exact number. Raises Refusal if it is over the caps of stored numbers."""
    try:
        value = exact(text, digits=CAPS.digits, exponent=CAPS.exponent)
    except ValueError:
        raise Refusal("this is not a decimal number", at) from None
    if value is None:
        bounds = f"{CAPS.digits:,} digits and an exponent of {CAPS.exponent}"
        raise Refusal(f"a number has at most {bounds}", at)
    return value


def unescaped(literal: str) -> str:
    """Return the text between single quotes, without escapes.

    A backslash before any other character stays, for LIKE.
    """
    inner = literal[1:-1]
    if "\\" not in inner and "'" not in inner:
        return inner
    return _ESCAPED.sub(lambda match: _ESCAPES[match[1] or "'"], inner)


def escaped(text: str) -> str:
    """Return a text in single quotes, the inverse of `unescaped`."""
    return f"'{_TO_ESCAPE.sub(lambda match: _ESCAPE_OF[match[0]], text)}'"


def text_of(value: str, at: SourceRange) -> Scalar:
    """Return a text. Raises Refusal if Postgres cannot store it: no stored text equals it."""
    if not storable(value):
        raise Refusal("a text holds neither NUL nor half a surrogate pair", at)
    return Scalar(value, at)


def read_date(text: str, at: SourceRange) -> Instant:
    """Read a date such as `2026-11-01`. Raises Refusal."""
    if _DATE.fullmatch(text) is None:
        message = "a date is written 2026-11-01"
        suggestions = [f"TIMESTAMP('{text}')"] if _TIMESTAMP.fullmatch(text) else []
        raise Refusal(message, at, suggestions)
    try:
        return Instant(date.fromisoformat(text), at)
    except ValueError as wrong:
        raise Refusal(f"there is no such day: {wrong}", at) from None


def read_timestamp(text: str, at: SourceRange) -> Instant:
    """Read a timestamp such as `2026-11-01T10:00:00Z`, or with an offset, to the microsecond.

    The result is in UTC. Raises Refusal.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        message = "a timestamp is written 2026-11-01T10:00:00Z, to the microsecond"
        raise Refusal(message, at, _meant(text))
    day, time, fraction, offset = match.groups()
    spelled = f"{day}T{time}.{fraction or '0':0<6}{offset or '+00:00'}"
    try:
        return Instant(datetime.fromisoformat(spelled).astimezone(UTC), at)
    except (ValueError, OverflowError) as wrong:
        raise Refusal(f"there is no such time: {wrong}", at) from None


def read_instant(text: str, at: SourceRange) -> Instant | None:
    """Read a bound of an interval: a date, a timestamp, or None for the open end `..`."""
    if text == "..":
        return None
    return read_date(text, at) if _DATE.fullmatch(text) else read_timestamp(text, at)


def spelled(instant: Instant) -> str:
    """Return the text of an instant, as in `DATE('…')` and `TIMESTAMP('…')`."""
    if not isinstance(instant.value, datetime):
        return instant.value.isoformat()
    return instant.value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _meant(text: str) -> list[str]:
    if _DATE.fullmatch(text):
        return [f"DATE('{text}')"]
    if read_duration(text) is not None:
        return [f"now() - duration('{text}')"]
    with_zone = text.replace(" ", "T") + "Z"
    return [f"TIMESTAMP('{with_zone}')"] if _TIMESTAMP.fullmatch(with_zone) else []
