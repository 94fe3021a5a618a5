"""Answers: JSON with times in UTC with microseconds, numbers exact and any text as it came."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from inspect import get_annotations
from typing import Annotated, Any, Final, Self, TypeAlias, get_type_hints

from pydantic import BaseModel, ConfigDict, PlainValidator, WithJsonSchema
from starlette.responses import Response

from inference_store.inference.field_docs import DocumentedModel
from inference_store.platform import json_encoding

_ABSENT: Final = object()
Instead: TypeAlias = Mapping[str, tuple[str, ...]]


class Shown(DocumentedModel):
    """A body of an answer.

    `class ShownPart(Shown, of=Part)` has the fields of the dataclass, with their types and
    docstrings; all of them are required. The class body declares what differs: a field of another
    type, and fields that are not in the dataclass. These come last, unless `instead` gives them a
    place: `instead={"model": ("model_id",)}` shows `model_id` in place of `model`.
    """

    model_config = ConfigDict(from_attributes=True)

    def __init_subclass__(
        cls, of: type[Any] | None = None, instead: Instead | None = None, **config: Any
    ) -> None:
        super().__init_subclass__(**config)
        if of is not None:
            cls.taken_from = of
            own = get_annotations(cls)
            # pydantic reads them next, and makes a field of each
            cls.__annotations__ = dict(_merge_types(of, instead or {}, own))

    @classmethod
    def show(cls, source: object, **own: Any) -> Self:
        """Make an answer from the attributes of `source`, and from `own`, which takes precedence.

        Raises ValidationError if it is not what the OpenAPI promises.
        """
        attributes = {
            name: getattr(source, name, _ABSENT) for name in cls.model_fields.keys() - own
        }
        values = {name: value for name, value in attributes.items() if value is not _ABSENT}
        return cls.model_validate(values | own)


def _merge_types(of: type[Any], instead: Instead, own: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    types = get_type_hints(of) | own
    names = [name for field in fields(of) for name in instead.get(field.name, (field.name,))]
    for name in dict.fromkeys([*names, *own]):
        yield name, types[name]


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is a text")
    return value


AnyText: TypeAlias = Annotated[str, PlainValidator(_check_text), WithJsonSchema({"type": "string"})]
"""Text of which parts may not be Unicode: it may have lone surrogates, which `str` refuses."""


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

    def __init__(
        self,
        content: Any,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        revision: int | None = None,
        location: str | None = None,
    ) -> None:
        """`revision`: for the If-Match of a change; `location`: where to find what was made."""
        super().__init__(content, status_code, headers)
        if revision is not None:
            self.headers["ETag"] = f'"{revision}"'
        if location is not None:
            self.headers["Location"] = location

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class Answer(JsonAnswer):
    """An answer that was validated when it was made, as one that is `Shown`."""


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


NAME: Final = "Inference-Store-Warnings"
_MOST_BYTES: Final = 2_000  # some proxies refuse an answer with more than 4 KB of headers


def write_warnings(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header, a JSON array of texts in ASCII; none without warnings. Of those that are
    too long together, it has the first, and the number of the others."""
    texts: list[str] = []
    size = 0
    for warning in warnings:
        size += len(json.dumps(warning)) + len(", ")
        if size > _MOST_BYTES:
            texts.append(f"And {len(warnings) - len(texts):,} more: a page of JSON has them all.")
            break
        texts.append(warning)
    return {NAME: json.dumps(texts).replace("\x7f", "\\u007f")} if texts else {}
