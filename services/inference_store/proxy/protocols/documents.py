"""Reads bodies within their content codings, as JSON or as server-sent events, with their problems,
and writes answers as the ingester reads them."""

import gzip
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from json import detect_encoding
from typing import Any, Final

import orjson

from inference_store.inference import json_text
from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import (
    Json,
    Number,
    Span,
    UnreadableJson,
    read_exactly,
    read_json,
    write_json,
)
from inference_store.proxy.exchange import Body, Exchange, Headers, header

from .protocol import MOST_ERROR, NAMES, Problem, describe_missing, unreadable

MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest decoded body: a megabyte of gzip can be a gigabyte."""
_MOST_CODINGS: Final = 4
_GZIP: Final = ("gzip", "x-gzip")
_LEVEL: Final = 1


class NotDecoded(ValueError):
    """A body cannot be decoded; `str()` of the error gives the reason."""


def list_codings(headers: Headers) -> list[str]:
    """Return the codings of a body, in the order in which they were applied."""
    names = [
        part
        for name, value in headers
        if name == "content-encoding"
        for part in value.lower().split(",")
    ]
    return [name for part in names if (name := part.strip()) not in ("", "identity")]


def decode(body: bytes, headers: Headers, most: int = MOST_BYTES) -> bytes:
    """Return the body without its codings, at most `most` bytes. Raises NotDecoded."""
    names = list_codings(headers)
    if len(names) > _MOST_CODINGS:
        raise NotDecoded(f"content-encoding names {len(names)} codings")
    for name in reversed(names):
        body = _decode(name, body, most)
    return body


def decoded(body: bytes, headers: Headers, most: int = MOST_BYTES) -> bytes | None:
    """Decode a body; return None if that is not possible."""
    try:
        return decode(body, headers, most)
    except NotDecoded:
        return None


def encode(body: bytes, headers: Headers) -> bytes:
    """Encode a body in the codings that the headers name, which `decode` knows."""
    for name in list_codings(headers):
        body = (
            gzip.compress(body, _LEVEL, mtime=0) if name in _GZIP else zlib.compress(body, _LEVEL)
        )
    return body


def _decode(name: str, body: bytes, most: int) -> bytes:
    if name not in (*_GZIP, "deflate"):
        raise NotDecoded(f"content-encoding {name[:40]!r} is not read")
    try:
        return _inflate(body, zlib.MAX_WBITS + 32, most)
    except zlib.error as exc:
        if name != "deflate":
            raise NotDecoded(f"the body is not {name}: {exc}") from None
    try:  # deflate without its zlib envelope, which some send
        return _inflate(body, -zlib.MAX_WBITS, most)
    except zlib.error as exc:
        raise NotDecoded(f"the body is not deflate: {exc}") from None


def _inflate(body: bytes, wbits: int, most: int) -> bytes:
    """Inflate one stream after the other. Raises NotDecoded, zlib.error."""
    inflated = bytearray()
    while body:
        stream = zlib.decompressobj(wbits)
        inflated += stream.decompress(body, most + 1 - len(inflated))
        if len(inflated) > most:
            raise NotDecoded(f"the body becomes larger than {most} bytes")
        if not stream.eof:
            raise NotDecoded("the coded body breaks off")
        body = stream.unused_data.lstrip(b"\0")
    return bytes(inflated)


_LINES: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def is_event_stream(headers: Headers, body: bytes = b"") -> bool:
    """Return whether a body is an event stream, by its content type or its beginning."""
    declared = (header(headers, "content-type") or "").strip().lower()
    return declared.startswith("text/event-stream") or body.startswith((b"data:", b"event:"))


def events(body: bytes) -> list[bytes]:
    """Return the data of each event that has any, including a last event that broke off."""
    data: list[bytes] = []
    lines: list[bytes] = []
    for line in [*_LINES.split(body.removeprefix(_BYTE_ORDER_MARK)), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line:
            data.append(b"\n".join(lines))
            lines = []
    return [event for event in data if event]


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
    """Read a body's bytes without content coding; still coded if that cannot be undone."""
    missing = describe_missing(body, side)
    try:
        return Document(raw=decode(body.bytes, headers), problem=missing)
    except NotDecoded as exc:
        sentence = f"{NAMES[side]} is kept coded, as it came: {exc}"
        problem = missing or unreadable(sentence, side)
        return Document(raw=body.bytes, problem=problem)


def read_document(
    body: Body, headers: Headers, side: CaptureSide, *, exact: bool = False
) -> Document:
    """Read a body as JSON. `exact`: keep numbers as they were written."""
    return as_json(read_bytes(body, headers, side), side, exact=exact)


def as_json(document: Document, side: CaptureSide, *, exact: bool = False) -> Document:
    """Read the bytes of a body as JSON, if there are any."""
    is_read = not document.problem and bool(document.raw.strip())
    return parsed(document.raw, side, exact=exact) if is_read else document


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
    return json_text.by_name(raw, json_text.root(raw)).get(name)


def elements(raw: bytes, span: Span | None, count: int) -> Sequence[Span | None]:
    """Return the spans of the `count` elements of the list at `span`."""
    return [None] * count if span is None else list(json_text.items(raw, span))


def walk(value: Json) -> Iterator[Json]:
    """Yield a value of JSON, and all values inside it."""
    waiting = [value]
    while waiting:
        yield (value := waiting.pop())
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def text_or_base64(raw: bytes) -> Any:
    """Return bytes as JSON: text if they are UTF-8, else `{"b64": "…"}`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(raw).decode()}


def media_type(headers: Headers) -> str:
    """Return the content type without parameters, in lower case; empty if there is none."""
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()


_ERROR_NAMES: Final = ("message", "detail", "error")


def answer_json(answer: Document) -> bytes | None:
    """Return the answer's own JSON; another body as `{"body": …}`, which no task type mistakes for
    a prediction; None if there was no answer."""
    if not answer.raw.strip():
        return None
    return written({"body": text_or_base64(answer.raw)}) if answer.problem else answer.raw


def v2_answer_json(outputs: list[dict[str, Any]], **members: Any) -> bytes:
    """Return an answer in V2's JSON, without members that are None."""
    head = {name: value for name, value in members.items() if value is not None}
    return written({**head, "outputs": outputs})


def output(name: str, data: list[Any]) -> dict[str, Any]:
    """Return one output; its first dimension counts the elements of `data`."""
    shape: list[int] = []
    first: Json = data
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    return {"name": name, "datatype": _datatype(first), "shape": shape, "data": data}


def _datatype(scalar: Json) -> str:
    if isinstance(scalar, bool):
        return "BOOL"
    if isinstance(scalar, Number):
        return "INT64" if scalar.lstrip("-").isdecimal() else "FP64"
    return {int: "INT64", float: "FP64"}.get(type(scalar), "BYTES")


def find_failure(exchange: Exchange, answer: Document) -> tuple[bool | None, str | None]:
    """Return False if the answer reports a failure in its body, else None; and the error text."""
    if (exchange.http_status or 0) >= 400:
        return None, describe_failure(answer)
    error = find_error(answer.value)
    return (None if error is None else False), error


def describe_failure(answer: Document) -> str | None:
    """Return the text of an answer with a status of failure; None if it is empty."""
    text = find_error(answer.value) or _find_text(answer.value)
    return text or answer.raw[:MOST_ERROR].decode("utf-8", "replace").strip() or None


def find_error(value: Json) -> str | None:
    """Return the text of `{"error": …}`; None if there is none."""
    error = value.get("error") if isinstance(value, dict) else None
    return (_find_text(error) or write_json(error))[:MOST_ERROR] if error else None


def _find_text(value: Json, levels: int = 3) -> str | None:
    if isinstance(value, dict):
        texts = (_find_text(value.get(name), levels - 1) for name in _ERROR_NAMES if levels)
        return next((text for text in texts if text), None)
    if isinstance(value, list) and value:
        return write_json(value)[:MOST_ERROR]
    return value[:MOST_ERROR] if type(value) is str and value else None
