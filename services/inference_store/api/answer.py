"""Answers: JSON with times in UTC with microseconds, numbers exact and any text as it came."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, get_args

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, SkipValidation
from pydantic.fields import FieldInfo
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inference_store.index.database import is_transient
from inference_store.inference import errors
from inference_store.inference.errors import (
    Fault,
    MethodNotAllowed,
    NotJson,
    ObjectStoreUnavailable,
    StoreError,
)
from inference_store.inference.field_docs import DocumentedModel, WrongField
from inference_store.inference.nearest import UnknownName
from inference_store.platform import json_encoding
from inference_store.platform.metrics import REFUSED
from inference_store.query.deadline import OutOfTime, Overloaded

Content_co = TypeVar("Content_co", covariant=True)


class Shown(DocumentedModel):
    """A body of an answer."""

    model_config = ConfigDict(from_attributes=True)

    @classmethod
    def show(cls, source: object, **own: Any) -> Self:
        """Make an answer from the attributes of `source`, and from `own`, which takes precedence.

        Raises ValidationError if it is not what the OpenAPI promises.
        """
        names = [name for name in cls.model_fields.keys() - own if hasattr(source, name)]
        return cls.model_validate({name: getattr(source, name) for name in names} | own)


AnyText: TypeAlias = SkipValidation[str]
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


class Answer(Response, Generic[Content_co]):
    """An answer of JSON: what is `Shown`, which is validated when it is made, or what is in
    inferences, of which a page has a thousand, so that tests validate it instead."""

    media_type = "application/json"

    def __init__(
        self,
        content: Content_co,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        revision: int | str | None = None,
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


def _convert(value: Any) -> Any:
    """An answer leaves out the fields that it was not given."""
    if not isinstance(value, BaseModel):
        return json_encoding.convert_value(value)
    fields = type(value).model_fields
    names = value.model_fields_set if isinstance(value, Shown) else fields.keys()
    return {name: part for name, part in value if name in names and not fields[name].exclude}


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
            texts.append(f"And {len(warnings) - len(texts):,} more: the JSON page lists them all.")
            break
        texts.append(warning)
    return {NAME: json.dumps(texts).replace("\x7f", "\\u007f")} if texts else {}


# Refusals: all have one form, problem details (RFC 9457).

PAGE = "/docs/errors"
# characters of a field's name that are checked and shown: no known name is longer
_NAME_CHARACTERS = 256
_BUSY: dict[type[Exception], str] = {
    Overloaded: "The store was busy and the query did not run. Send it again.",
    PoolTimeout: "Every connection to Postgres is in use. Send the request again.",
}
_log = structlog.get_logger()


class ProblemError(DocumentedModel):
    """One thing wrong in the request."""

    path: str = Field(examples=["metadata_filter[0].key"])
    message: str = Field(examples=["unknown key"])
    known: list[str] = Field(examples=[["frame_number", "data_source"]])
    line: int | None = Field(default=None, examples=[1])
    """Of a filter in text, from 1; with `column` and `length`, or none of the three."""
    column: int | None = Field(default=None, examples=[15])
    """In characters (code points), from 1."""
    length: int | None = Field(default=None, examples=[2])
    """How many characters are wrong."""


class Problem(BaseModel):
    """Problem details (RFC 9457)."""

    type: str = Field(examples=[f"{PAGE}#unknown-metadata-key"])
    title: str = Field(examples=["No inference of this model has this metadata key"])
    status: int = Field(examples=[422])
    detail: str = Field(
        examples=["filter: there is no metadata key 'frame_numer'; the nearest is frame_number."]
    )
    errors: list[ProblemError]


def list_kinds() -> Iterator[type[StoreError]]:
    """Yield every kind of refusal, in the order of the tree of errors."""

    def below(kind: type[StoreError]) -> Iterator[type[StoreError]]:
        yield kind
        for sub in kind.__subclasses__():
            yield from below(sub)

    yield from sorted(set(below(StoreError)), key=lambda kind: (kind.status, kind.type))


def document_refusals(
    *statuses: int, also: dict[int | str, dict[str, Any]] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the refusals of a route for its documentation; those of every route are added."""
    always = {*statuses, 401, 403, 406, 422, 429, 431, 500, 503}
    return {**(also or {}), **{status: dict(_document_status(status)) for status in sorted(always)}}


@cache  # each route has most of them
def _document_status(status: int) -> dict[str, Any]:
    kinds = [kind for kind in list_kinds() if kind.status == status]
    examples = {kind.type: {"value": _format_problem(kind, "…", ())} for kind in kinds}
    return {
        "description": "; ".join(dict.fromkeys(kind.title for kind in kinds)),
        "content": {
            PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": examples}
        },
    }


def refuse(request: Request, exc: Exception) -> Answer[Any]:
    """Return the answer to an error: every refusal is problem details."""
    if isinstance(exc, RequestValidationError):
        return _refuse_invalid(request, exc)
    if isinstance(exc, HTTPException):
        return _refuse_http(request, exc)
    refusal = find_refusal(exc)
    if isinstance(refusal, errors.Conflict) and not refusal.faults and request.path_params:
        # what the path names last is in a state that does not allow it
        refusal.faults = (Fault(f"path.{list(request.path_params)[-1]}", refusal.detail),)
    return build_problem(refusal)


def build_problem(exc: StoreError, headers: Mapping[str, str] | None = None) -> Answer[Any]:
    """Return a refusal as an answer."""
    more = dict(headers or {})
    if exc.status in (401, 403, 429, 431) or isinstance(exc, errors.Busy):
        REFUSED.labels(exc.type).inc()
    if exc.status == 401:
        more["WWW-Authenticate"] = "Bearer"
    if isinstance(exc, errors.TooManyRequests):
        more["Retry-After"] = str(exc.retry_after_seconds)
    if isinstance(exc, errors.RangeNotSatisfiable):
        more |= {"Accept-Ranges": "bytes", "Content-Range": f"bytes */{exc.size}"}
    if exc.status == 503:
        more["Retry-After"] = "5"
    # the common headers as well: those of a page are not for a refusal below its path
    return Answer(build_body(exc), exc.status, {**HEADERS, "Content-Type": PROBLEM, **more})


def build_body(exc: StoreError) -> dict[str, Any]:
    """Return a refusal as problem details."""
    return _format_problem(type(exc), exc.detail, exc.faults)


def _format_problem(kind: type[StoreError], detail: str, faults: Sequence[Fault]) -> dict[str, Any]:
    return {
        "type": f"{PAGE}#{kind.type}",
        "title": kind.title,
        "status": kind.status,
        "detail": _escape_text(detail),
        "errors": [
            {name: value for name, value in asdict(fault).items() if value is not None}
            | {"path": _escape_text(fault.path), "message": _escape_text(fault.message)}
            for fault in faults
        ],
    }


def _escape_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _refuse_invalid(request: Request, exc: RequestValidationError) -> Answer[Any]:
    validation_errors = exc.errors()
    faults = [_make_fault(request, error) for error in validation_errors[:100]]
    detail = "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:3])
    return build_problem(errors.Invalid(f"{detail}.", faults=faults))


def _make_fault(request: Request, error: Mapping[str, Any]) -> Fault:
    where, *rest = error["loc"]
    path = _format_path(rest) if where == "body" else _format_path(error["loc"])
    model = _find_model_around(request, rest) if where == "body" else None
    fields = {} if model is None else model.model_fields
    if error["type"] == "extra_forbidden":
        known_fields = [field.alias or name for name, field in fields.items()]
        near = get_close_matches(str(rest[-1])[:_NAME_CHARACTERS], known_fields, 1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        return Fault(path, f"unknown field{hint}", known_fields)
    message = _describe_error(error, fields.get(str(rest[-1])) if rest else None)
    if where == "body" and not rest and isinstance(error.get("input"), bytes):
        message = "send JSON with the header Content-Type: application/json"
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, WrongField | UnknownName) and cause.field is not None:
        path = f"{path}.{cause.field}" if path else cause.field
    return Fault(path or "body", message, cause.known if isinstance(cause, UnknownName) else ())


# How pydantic names a member of a union, in the place of a field.
_UNION_MEMBER: Final = re.compile(r"(function-(after|before|plain|wrap)|list|dict|tuple)\[.+\]")


def _format_path(parts: Iterable[Any]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, str) and _UNION_MEMBER.fullmatch(part):
            continue
        name = str(part)[:_NAME_CHARACTERS]
        path += f"[{part}]" if isinstance(part, int) else f".{name}" if path else name
    return path


def _find_model_around(request: Request, parts: Sequence[Any]) -> type[BaseModel] | None:
    route = request.scope.get("route")
    field = getattr(route, "body_field", None)
    kind: Any = field.field_info.annotation if field is not None else None
    for part in parts[:-1]:
        if (
            not isinstance(part, int)
            and (model := _find_model(kind))
            and part in model.model_fields
        ):
            kind = model.model_fields[part].annotation
    return _find_model(kind)


def _find_model(kind: Any) -> type[BaseModel] | None:
    """Return the pydantic model in an annotation, such as `list[Model] | None`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    for inner in getattr(kind, "__args__", ()):
        if (model := _find_model(inner)) is not None:
            return model
    return None


def _refuse_http(request: Request, exc: HTTPException) -> Answer[Any]:
    match exc.status_code:
        case 404:
            return build_problem(
                errors.NotFound("The path does not exist; /openapi.json lists all paths.")
            )
        case 405:
            # those of every route that has the path: Starlette names those of one
            routes = [route for route in request.app.routes if isinstance(route, Route)]
            path = request.scope["path"]
            allowed = {m for r in routes if r.path_regex.match(path) for m in r.methods or ()}
            return build_problem(
                MethodNotAllowed("The path does not support this method."),
                {"Allow": ", ".join(sorted(allowed))} if allowed else exc.headers,
            )
        case _:
            return build_problem(NotJson(f"The body cannot be read: {exc.detail}."))


def find_refusal(exc: Exception) -> StoreError:
    """Return what an error is to the caller; an unexpected error is logged."""
    if isinstance(exc, StoreError):
        return exc
    if isinstance(exc, (Overloaded, PoolTimeout)):
        return errors.Busy(_BUSY[type(exc)])
    can_be_narrowed = isinstance(exc, OutOfTime)
    if can_be_narrowed or "canceling statement due to statement timeout" in str(exc):
        again = "Postgres took too long. Send the request again."
        narrow = "The query took too long: narrow its time window."
        return errors.QueryTimeout(narrow if can_be_narrowed else again)
    if isinstance(exc, ObjectStoreUnavailable):
        # its words name addresses, buckets and keys, which are none of a caller's business
        _log.warning(
            "the object store is unavailable", action="object_store_away", error=str(exc)[:500]
        )
        return errors.Unavailable(
            "The object store is unavailable, or is not taking requests. Send the request again"
            " after Retry-After; the log of the api says why."
        )
    if isinstance(exc, OSError) or is_transient(exc):
        _log.warning("postgres is unavailable", action="postgres_away", error=str(exc)[:500])
        return errors.Unavailable("Postgres is unavailable, or is not taking requests.")
    _log.error("a request failed", action="request_failed", exc_info=exc)
    return StoreError("An unexpected error occurred and was logged.")


_BOUNDS: Final = {"ge": "at least", "gt": "over", "le": "at most", "lt": "below"}
_A_WHOLE_NUMBER: Final = "it must be a whole number"
# What pydantic refuses, by its names of errors: its own sentences are for programmers.
_WORDS: Final = {
    "missing": "it is required",
    "string_type": "it must be a string",
    "string_unicode": "it must not contain NUL or a lone surrogate",
    "finite_number": "it must be a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "it must be true or false"),
    **dict.fromkeys(("int_type", "int_from_float"), _A_WHOLE_NUMBER),
    **dict.fromkeys(("int_parsing", "int_parsing_size"), _A_WHOLE_NUMBER),
    **dict.fromkeys(("float_type", "float_parsing"), "it must be a number"),
    **dict.fromkeys(("list_type", "tuple_type"), "it must be a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "it must be an object"),
    **dict.fromkeys(
        ("uuid_type", "uuid_parsing"),
        "it must be a UUID, such as 019ac3f2-7c00-8123-9abc-0123456789ab",
    ),
    **dict.fromkeys(("literal_error", "enum"), "it must be {expected}"),
    "greater_than": "it must be over {gt:,}",
    "greater_than_equal": "it must be at least {ge:,}",
    "less_than": "it must be below {lt:,}",
    "less_than_equal": "it must be at most {le:,}",
    "too_long": "it must have at most {max_length:,} items",
    "too_short": "it must have at least {min_length:,} items",
    "string_too_long": "it must have at most {max_length:,} characters",
    "string_too_short": "it must have at least {min_length:,} characters",
}


def _describe_error(error: Mapping[str, Any], field: FieldInfo | None) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in {"too_long", "too_short"} and isinstance(error.get("input"), str):
        kind = f"string_{kind}"  # a bound that stands behind a validator of texts
    if kind.endswith("too_short") and context["min_length"] == 1:
        return "it must not be empty"
    words = _WORDS.get(kind)
    if words is None:
        return str(error["msg"]).removeprefix("Value error, ")
    is_whole = words == _A_WHOLE_NUMBER and field is not None
    bounds = " and ".join(_iterate_bounds([field])) if is_whole else ""
    return words.format(**context) + (f", {bounds}" if bounds else "")


def _iterate_bounds(parts: Iterable[Any]) -> Iterator[str]:
    """Yield the bounds in annotations, such as `Annotated[int, Field(ge=1)] | None`, in words."""
    for part in parts:
        if isinstance(part, FieldInfo):
            yield from _iterate_bounds([part.annotation, *part.metadata])
        else:
            bounds = {words: getattr(part, name, None) for name, words in _BOUNDS.items()}
            yield from (f"{words} {n:,}" for words, n in bounds.items() if n is not None)
            yield from _iterate_bounds([*get_args(part), *getattr(part, "__metadata__", ())])
