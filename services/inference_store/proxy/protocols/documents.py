"""Bodies as JSON: what they hold, or what is wrong with them; and JSON written anew."""

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
from .problems import NAMES, Problem, missing

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A body that should be JSON."""

    raw: bytes = field(repr=False)
    """Its bytes without content coding; as they came where that could not be read."""
    value: Json = field(default=None, repr=False)
    """None: null, nothing, or not read."""
    problem: Problem | None = None


def read_bytes(body: Body, headers: Headers, side: CaptureSide) -> Document:
    """A body's bytes without content coding."""
    if not body.whole:
        kept = sum(map(len, body.parts))
        sentence = f"of {NAMES[side]}'s {body.size} bytes only the first {kept} are there"
        return Document(raw=body.bytes, problem=missing(body, side, sentence))
    try:
        return Document(raw=decode(body.bytes, headers))
    except NotDecoded as exc:
        sentence = f"{NAMES[side]} is kept coded, as it came: {exc}"
        return Document(raw=body.bytes, problem=Problem(sentence, (side, "unreadable")))


def read_document(
    body: Body, headers: Headers, side: CaptureSide, *, exact: bool = False
) -> Document:
    """A body as JSON. `exact`: numbers as they were written."""
    found = read_bytes(body, headers, side)
    return found if found.problem or not found.raw.strip() else parsed(found.raw, side, exact=exact)


def parsed(
    raw: bytes, side: CaptureSide, part: str | None = None, *, exact: bool = False
) -> Document:
    """Bytes as JSON. `part`: how to call them in a sentence; None: they are the body."""
    try:
        return Document(raw=raw, value=read_exactly(raw) if exact else read_json(raw))
    except UnreadableJson as exc:
        sentence = f"{part or NAMES[side]} is not JSON: {exc}"
        return Document(raw=raw, problem=Problem(sentence, (side, "not_json")))


def written(value: Any) -> bytes:
    """JSON in UTF-8 of what was read or made here; numbers that were read exactly stay so."""
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except TypeError:  # exact numbers, lone surrogates, more than 254 levels
        return write_json(value).encode("utf-8", "backslashreplace")


def data_of(value: Json) -> tuple[bytes, str]:
    """A datum and its content type: a text as it is, everything else as JSON."""
    if type(value) is str:
        return value.encode("utf-8", "backslashreplace"), TEXT
    return written(value), JSON


def data_at(raw: bytes, span: Span | None, value: Json) -> tuple[bytes, str]:
    """As `data_of`, but JSON as it was written at `span` of `raw`, so that nothing is rounded."""
    if span is None or type(value) is str:
        return data_of(value)
    return raw[span.start : span.end], JSON


def member(raw: bytes, name: str) -> Span | None:
    """Where a member of a JSON object stands; None where it has none, or is not in UTF-8."""
    if not detect_encoding(raw).startswith("utf-8"):
        return None
    return json_spans.by_name(raw, json_spans.root(raw)).get(name)


def elements(raw: bytes, span: Span | None, count: int) -> Sequence[Span | None]:
    """Where the elements of the list at `span` stand, of which there are `count`."""
    return [None] * count if span is None else list(json_spans.items(raw, span))


def text_or_base64(raw: bytes) -> Any:
    """Bytes in JSON: text where they are UTF-8, else `{"b64": "…"}`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(raw).decode()}


def media_type(headers: Headers) -> str:
    """The content type alone, in lower case; empty where none is said."""
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()
