"""JSON with exact numbers: whole numbers of any size are `int`, decimals are `Decimal`."""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""What JSON can hold; a number may be `int`, `float` or `Decimal`."""


def read_json(text: str | bytes) -> Json:
    """Read JSON with exact numbers. Raises ValueError."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse_constant)


def read_plain(text: str | bytes) -> Json:
    """Read JSON whose decimals are doubles: they are `float`. Raises ValueError."""
    return json.loads(text)


def write_json(value: Json, *, ensure_ascii: bool = True) -> str:
    """Write JSON with exact numbers. Raises ValueError for NaN, TypeError for what JSON has not."""
    write = partial(write_json, ensure_ascii=ensure_ascii)
    match value:
        case None | bool() | str() | int():
            return json.dumps(value, ensure_ascii=ensure_ascii)
        case float() | Decimal():
            return _write_number(value)
        case Mapping():
            members = (f"{write(str(name))}: {write(v)}" for name, v in value.items())
            return "{" + ", ".join(members) + "}"
        case Sequence():
            return "[" + ", ".join(map(write, value)) + "]"
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _write_number(value: float | Decimal) -> str:
    if not math.isfinite(value):
        raise ValueError(f"JSON has no number {value}")
    return repr(value) if isinstance(value, float) else str(value)


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"JSON has no number {name}")


# Numbers with their nouns, for sentences.


def write_count(count: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts: `1 file`, `2,000 files`; `plural`: not noun + s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
