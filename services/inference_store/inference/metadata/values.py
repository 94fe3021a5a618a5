"""Converts texts to typed values. Each function returns (value, flag).

A value of None is not indexed as its type, and the flag says why (`not_int`, `number_too_large`). A
value with a flag is indexed, and the flag is a remark (`no_offset`).
"""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import (
    TooDeep,
    UnreadableJson,
    exact,
    is_non_finite,
    read_exactly,
    storable,
)

from .caps import MetadataCaps

# Without the hour 24, which Python 3.14 reads as midnight of the next day.
_RFC_3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)"
    r"(?:[Tt ]((?!24)\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-]\d\d:\d\d))?)?",
    re.ASCII,
)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_string(text: str, _: MetadataCaps) -> tuple[str | None, str | None]:
    """Read any text that Postgres can store; else flag `nul_character` or `lone_surrogate`."""
    if storable(text):
        return text, None
    return None, "nul_character" if "\0" in text else "lone_surrogate"


def read_int(text: str, caps: MetadataCaps) -> tuple[Decimal | None, str | None]:
    """Read a whole number; `987.0` and `1e3` are whole, too."""
    if len(text) <= 18 and text.isdecimal() and text.isascii():
        return Decimal(text), None
    value, flag = _number(text, caps, "not_int")
    if value is None or value == value.to_integral_value():
        return value, flag
    return None, "not_int"


def read_float(text: str, caps: MetadataCaps) -> tuple[Decimal | None, str | None]:
    """Read a decimal number, exactly as it was written."""
    return _number(text, caps, "not_float")


def read_json_text(text: str, _: MetadataCaps) -> tuple[None, str | None]:
    """Return no value, as JSON is split into leaves; flag `not_json` or `too_deep` if it cannot
    be."""
    try:
        read_exactly(text)
    except TooDeep:
        return None, "too_deep"
    except UnreadableJson:
        return None, "not_json"
    return None, None


def read_bool(text: str, _: MetadataCaps) -> tuple[bool | None, str | None]:
    """Read `true`, `false`, `1` or `0`, in any case of letters."""
    value = _BOOLEANS.get(text.strip().lower())
    return value, "not_bool" if value is None else None


def read_timestamp(text: str, _: MetadataCaps) -> tuple[datetime | None, str | None]:
    """Read RFC 3339, floored to microseconds, in UTC; a date is its midnight.

    Without an offset it is read as UTC and flagged `no_offset`. A leap second is `not_timestamp`.
    """
    match = _RFC_3339.fullmatch(text.strip())
    if match is None:
        return None, "not_timestamp"
    date, time, fraction, zulu, offset = match.groups()
    spelled = f"{date}T{time or '00:00:00'}.{(fraction or '')[:6]:0<6}{offset or '+00:00'}"
    try:
        value = datetime.fromisoformat(spelled).astimezone(UTC)
    except (ValueError, OverflowError):  # no such day or hour; beyond year 1 or 9999 in UTC
        return None, "not_timestamp"
    return value, None if zulu or offset or time is None else "no_offset"


def _number(text: str, caps: MetadataCaps, otherwise: str) -> tuple[Decimal | None, str | None]:
    text = text.strip()
    try:
        value = exact(text, digits=caps.digits, exponent=caps.exponent)
    except ValueError:
        return None, "not_finite" if is_non_finite(text) else otherwise
    return value, "number_too_large" if value is None else None
