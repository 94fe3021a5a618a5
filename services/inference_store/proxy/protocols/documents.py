"""Reads bodies as JSON, with their problems, and writes JSON."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from json import detect_encoding
from typing import Any, Final

import orjson

from inference_store.inference import json_spans
from inference_store.inference.events import CaptureSide
from inference_store.inference.json_spans import Span
from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    read_json,
    write_json,
)
from inference_store.proxy.exchange import Body, Headers, header

from .content_encoding import NotDecoded, decode
from .problems import NAMES, Problem, describe_missing

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A body that should be JSON."""

    raw: bytes = field(repr=False)
    """Its bytes without content coding; unchanged if they cannot be decoded."""
    value: Json = field(default=None, repr=False)
    """None if it is null, empty, or unreadable."""
    problem: Problem | None = None


def read_bytes(body: Body, headers: Headers, side: CaptureSide) -> Document:
    """Read a body's bytes without content coding."""
    if not body.whole:
        return Document(raw=body.bytes, problem=describe_missing(body, side))
    try:
        return Document(raw=decode(body.bytes, headers))
    except NotDecoded as exc:
        sentence = f"{NAMES[side]} is kept coded, as it came: {exc}"
        return Document(raw=body.bytes, problem=Problem(sentence, (side, "unreadable")))


def read_document(
    body: Body, headers: Headers, side: CaptureSide, *, exact: bool = False
) -> Document:
    """Read a body as JSON. `exact`: keep numbers as they were written."""
    document = read_bytes(body, headers, side)
    return (
        document
        if document.problem or not document.raw.strip()
        else parsed(document.raw, side, exact=exact)
    )


def parsed(
    raw: bytes, side: CaptureSide, part: str | None = None, *, exact: bool = False
) -> Document:
    """Read bytes as JSON. `part`: their name in a sentence; None if they are the body."""
    try:
        return Document(raw=raw, value=read_exactly(raw) if exact else read_json(raw))
    except UnreadableJson as exc:
        sentence = f"{part or NAMES[side]} is not JSON: {exc}"
        return Document(raw=raw, problem=Problem(sentence, (side, "not_json")))


def written(value: Any) -> bytes:
    """Write a value as JSON in UTF-8; numbers that were read exactly stay exact."""
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except TypeError:  # exact numbers, lone surrogates, more than 254 levels
        return write_json(value).encode("utf-8", "backslashreplace")


def data_of(value: Json) -> tuple[bytes, str]:
    """Return a datum and its content type: a text unchanged, everything else as JSON."""
    if type(value) is str:
        return value.encode("utf-8", "backslashreplace"), TEXT
    return written(value), JSON


def data_at(raw: bytes, span: Span | None, value: Json) -> tuple[bytes, str]:
    """Return a datum as `data_of` does, but JSON as it is written at `span` of `raw`, so that
    nothing is rounded."""
    if span is None or type(value) is str:
        return data_of(value)
    return raw[span.start : span.end], JSON


def member(raw: bytes, name: str) -> Span | None:
    """Return the span of a member of a JSON object; None if there is none, or the text is not in
    UTF-8."""
    if not detect_encoding(raw).startswith("utf-8"):
        return None
    return json_spans.by_name(raw, json_spans.root(raw)).get(name)


def elements(raw: bytes, span: Span | None, count: int) -> Sequence[Span | None]:
    """Return the spans of the `count` elements of the list at `span`."""
    return [None] * count if span is None else list(json_spans.items(raw, span))


def text_or_base64(raw: bytes) -> Any:
    """Return bytes as JSON: text if they are UTF-8, else `{"b64": "…"}`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(raw).decode()}


def media_type(headers: Headers) -> str:
    """Return the content type without parameters, in lower case; empty if there is none."""
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()
