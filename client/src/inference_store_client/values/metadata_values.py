"""Reads the text of a metadata value as its declared type, exactly.

The rules are those of the store (`metadata_as` object), but a timestamp becomes a `datetime`.
A value that does not fit its type, and NaN, is the text that came.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from inference_store_client.json_text import read_json

MetadataValue: TypeAlias = Any
"""int, Decimal, bool, str, datetime, None, or JSON with exact numbers."""
# The store's own bounds: a number beyond them is a text there, too.
_MOST_DIGITS: Final = 1000
_MOST_EXPONENT: Final = 400
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,6}))?", re.ASCII
)
# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ]((?!24)\d\d:\d\d:\d\d)(?:\.(\d+))?(?:[Zz]|([+-]\d\d:\d\d))?)?",
    re.ASCII,
)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_value(type_name: str, text: str | None) -> MetadataValue:
    """Return a value as its declared type; the text itself if it does not fit."""
    if text is None:
        return None
    read = _READERS.get(type_name.strip().lower(), _read_unknown)
    try:
        return read(text)
    except (ValueError, OverflowError, RecursionError):
        return text


def read_instant(text: str) -> datetime:
    """Return an instant in UTC, to the microsecond; without an offset it is UTC. Raises
    ValueError."""
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a timestamp")
    date, time, fraction, offset = match.groups()
    spelled = f"{date}T{time or '00:00:00'}.{(fraction or '')[:6]:0<6}{offset or '+00:00'}"
    return datetime.fromisoformat(spelled).astimezone(UTC)


def _read_decimal(text: str) -> Decimal:
    text = text.strip()
    match = _NUMBER.fullmatch(text)
    if match is None or abs(int(match[1] or 0)) > _MOST_EXPONENT:
        raise ValueError(f"{text!r} is not a number")
    if sum(map(str.isdigit, re.split("[eE]", text)[0])) > _MOST_DIGITS:
        raise ValueError("the number has too many digits")
    return Decimal(text)


def _read_int(text: str) -> int:
    value = _read_decimal(text)
    whole = int(value)
    if whole != value:
        raise ValueError(f"{text!r} is not a whole number")
    return whole


def _read_bool(text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return value


def _read_unknown(text: str) -> MetadataValue:
    """Read a value without a type: JSON came as JSON; a text was written without its quotes."""
    return text if text.startswith('"') else read_json(text)


def _named(*names: str, read: Callable[[str], Any]) -> dict[str, Callable[[str], Any]]:
    return dict.fromkeys(names, read)


_READERS: Final[Mapping[str, Callable[[str], MetadataValue]]] = {
    **_named("string", "str", read=str),
    **_named("int", "integer", read=_read_int),
    **_named("float", "double", "number", read=_read_decimal),
    **_named("bool", "boolean", read=_read_bool),
    **_named("timestamp", "datetime", "date", read=read_instant),
    **_named("json", "dict", "object", read=read_json),
}
