"""Answers as JSON: times in UTC with microseconds, numbers exact, any text as it came."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import Response

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_OPTIONS_OF_FIT_TIMES = orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS
PROBLEM = "application/problem+json"
# What every answer carries, unless it sets something else itself.
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def encode_json(content: Any, *, times_fit: bool = False) -> bytes:
    """Encode an answer as JSON. `times_fit`: all times in it have been through `fit_times`."""
    option = _OPTIONS_OF_FIT_TIMES if times_fit else _OPTIONS
    try:
        return orjson.dumps(content, default=_encode_other, option=option)
    # mostly a text that is no UTF-8; checking each text first would cost much more
    except TypeError:
        return orjson.dumps(_escape_all(content), default=_encode_other, option=option)


class Answer(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class ProblemAnswer(Answer):
    """A refusal (RFC 9457).

    It sets the common headers itself, because errors bypass what adds them.
    """

    media_type = PROBLEM

    def __init__(self, content: Any, status_code: int, headers: Mapping[str, str]) -> None:
        super().__init__(content, status_code, {**HEADERS, **headers})


def format_instant(at: datetime | None) -> str | None:
    """Format a time as RFC 3339, UTC, with microseconds."""
    if at is None:
        return None
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    return at.isoformat(timespec="microseconds")[:-6] + "Z"


def fit_times(found: dict[str, Any], names: Iterable[str]) -> None:
    """Prepare the times with these names for the encoder, which writes them at a fraction of the
    cost.

    It would omit zero microseconds: such times are formatted as `format_instant` does.
    """
    for name in names:
        at = found[name]
        if at is not None and not (at.microsecond and at.tzinfo is UTC):
            found[name] = format_instant(at)


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
    """Return the content with every text that is no UTF-8 escaped."""
    match content:
        case str():
            return escape_text(content)
        case dict():
            return {name: _escape_all(value) for name, value in content.items()}
        case list() | tuple():
            return [_escape_all(each) for each in content]
    return content


def to_dict(value: Any, *without: str) -> dict[str, Any]:
    """Return a dataclass's fields by name."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in without}


def _encode_other(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    if isinstance(value, UUID):  # the driver's own type
        return str(value)
    raise TypeError(type(value).__name__)
