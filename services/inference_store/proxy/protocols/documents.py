"""Bodies as JSON: what they hold, or what is wrong with them; and JSON written anew."""

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from inference_store.proxy.exchange import Body, Headers, header
from inference_store.store.json_text import (
    Json,
    UnreadableJson,
    read_exactly,
    read_json,
    write_json,
)

from .content_encoding import NotDecoded, decode

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A body that should be JSON."""

    raw: bytes = field(repr=False)
    """Its bytes without content coding; as they came where that could not be read."""
    value: Json = field(default=None, repr=False)
    """None: null, nothing, or not read."""
    problem: str | None = None


def read_bytes(body: Body, headers: Headers, what: str) -> Document:
    """A body's bytes without content coding. `what`: how to call it in a sentence."""
    if not body.whole:
        kept = sum(map(len, body.parts))
        sentence = f"of {what}'s {body.size} bytes only the first {kept} are there"
        return Document(raw=body.bytes, problem=sentence)
    try:
        return Document(raw=decode(body.bytes, headers))
    except NotDecoded as exc:
        return Document(raw=body.bytes, problem=f"{what} is kept coded, as it came: {exc}")


def read_document(body: Body, headers: Headers, what: str, *, exact: bool = False) -> Document:
    """A body as JSON. `exact`: numbers as they were written."""
    found = read_bytes(body, headers, what)
    return found if found.problem or not found.raw.strip() else parsed(found.raw, what, exact=exact)


def parsed(raw: bytes, what: str, *, exact: bool = False) -> Document:
    """Bytes as JSON."""
    try:
        return Document(raw=raw, value=read_exactly(raw) if exact else read_json(raw))
    except UnreadableJson as exc:
        return Document(raw=raw, problem=f"{what} is not JSON: {exc}")


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


def text_or_base64(raw: bytes) -> Any:
    """Bytes in JSON: text where they are UTF-8, else `{"b64": "…"}`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(raw).decode()}


def media_type(headers: Headers) -> str:
    """The content type alone, in lower case; empty where none is said."""
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()
