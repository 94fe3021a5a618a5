"""Answers as JSON: times in UTC with microseconds, numbers exact, any text as it came."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from starlette.responses import Response

from inference_store.platform import json_encoding

from .shown import Shown

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
    return json_encoding.encode_json(content, times_fit=times_fit, convert=_convert)


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


def _to_dict(model: BaseModel) -> dict[str, Any]:
    """Return a model's fields; an answer leaves out those that it was not given."""
    names = model.model_fields_set if isinstance(model, Shown) else type(model).model_fields.keys()
    return {name: value for name, value in model if name in names}


def _convert(value: Any) -> Any:
    return _to_dict(value) if isinstance(value, BaseModel) else json_encoding.convert_value(value)
