"""JSON of inferences: times in UTC with microseconds, numbers exact, any text as it came."""

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import orjson

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_FIT_TIMES_OPTIONS: Final = orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS
Convert: TypeAlias = Callable[[Any], Any]


def convert_value(value: Any) -> Any:
    """Return a value that the encoder does not know, as one that it knows. Raises TypeError."""
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    if isinstance(value, UUID):  # the driver's own type
        return str(value)
    raise TypeError(type(value).__name__)


def encode_json(
    content: Any, *, times_fit: bool = False, convert: Convert = convert_value
) -> bytes:
    """Encode as JSON. `times_fit`: all times in it have been through `fit_times`; `convert`: as
    `convert_value`, for values of more types."""
    option = _FIT_TIMES_OPTIONS if times_fit else _OPTIONS
    try:
        return orjson.dumps(content, default=convert, option=option)
    # mostly a text that is no UTF-8; checking each text first would cost much more
    except TypeError:
        escaped = _escape_all(content)
        return orjson.dumps(escaped, default=lambda v: _escape_all(convert(v)), option=option)


def format_instant(at: datetime | None) -> str | None:
    """Format a time as RFC 3339, UTC, with microseconds."""
    if at is None:
        return None
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="microseconds")[:-6] + "Z"


def fit_times(item: dict[str, Any], names: Iterable[str]) -> None:
    """Prepare the times with these names for the encoder, which writes them at a fraction of the
    cost.

    It would omit zero microseconds: such times are formatted as `format_instant` does.
    """
    for name in names:
        at = item[name]
        if at is not None and not (at.microsecond and at.tzinfo is UTC):
            item[name] = format_instant(at)


def escape_text(value: str | None) -> Any:
    """Return text for JSON; a text that is no UTF-8 (it has a lone surrogate) is escaped."""
    if value is None:
        return None
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return orjson.Fragment(json.dumps(value))
    return value


def _escape_all(content: Any) -> Any:
    match content:
        case str():
            return escape_text(content)
        case dict():
            return {name: _escape_all(value) for name, value in content.items()}
        case list() | tuple():
            return [_escape_all(item) for item in content]
    return content
