"""Answers as JSON: times in UTC with microseconds, numbers exact, any text as it came."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from .shown import Shown

_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_FIT_TIMES_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS
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
    option = _FIT_TIMES_OPTIONS if times_fit else _OPTIONS
    try:
        return orjson.dumps(content, default=_encode_other, option=option)
    # mostly a text that is no UTF-8; checking each text first would cost much more
    except TypeError:
        return orjson.dumps(_escape_all(content), default=_encode_other, option=option)


class JsonAnswer(Response):
    """An answer of any JSON, which is not validated."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class Answer(JsonAnswer):
    """An answer that was validated when it was made."""

    def __init__(
        self, content: Shown, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, status_code, headers)


class InferenceAnswer(JsonAnswer):
    """An answer of inferences, or of what is in them: a page may have a thousand, so that tests
    validate them instead."""


class ProblemAnswer(JsonAnswer):
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
    """Return the content with every text that is no UTF-8 escaped."""
    match content:
        case str():
            return escape_text(content)
        case dict():
            return {name: _escape_all(value) for name, value in content.items()}
        case list() | tuple():
            return [_escape_all(item) for item in content]
        case BaseModel():
            return _escape_all(_to_dict(content))
    return content


def _to_dict(model: BaseModel) -> dict[str, Any]:
    """Return a model's fields; an answer leaves out those that it was not given."""
    names = model.model_fields_set if isinstance(model, Shown) else type(model).model_fields.keys()
    return {name: value for name, value in model if name in names}


def _encode_other(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    if isinstance(value, UUID):  # the driver's own type
        return str(value)
    if isinstance(value, BaseModel):
        return _to_dict(value)
    raise TypeError(type(value).__name__)
