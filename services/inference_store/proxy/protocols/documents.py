"""Reads bodies within their content codings, as JSON or as server-sent events, with their problems,
and writes answers as the ingester reads them."""

import gzip
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from json import detect_encoding
from typing import Any, Final

import orjson

from inference_store.grpc_messages import parsed
from inference_store.inference import json_text
from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import (
    Json,
    UnreadableJson,
    read_json,
    write_json,
)
from inference_store.proxy.exchange import Body, Exchange, Headers, correct_headers, header

from .protocol import MOST_ERROR, MOST_STRIPPED, NAMES, Problem

MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest decoded body: a megabyte of gzip can be a gigabyte."""
_MOST_CODINGS: Final = 4
_GZIP: Final = ("gzip", "x-gzip")
_LEVEL: Final = 1


class NotDecoded(ValueError):
    """A body, or a part of it, cannot be read; `str()` of the error gives the reason."""


def list_codings(headers: Headers) -> list[str]:
    """Return the codings of a body, in the order in which they were applied."""
    values = [value.lower() for name, value in headers if name == "content-encoding"]
    names = (name.strip() for value in values for name in value.split(","))
    return [name for name in names if name not in ("", "identity")]


def decode(body: bytes, headers: Headers, most: int = MOST_BYTES) -> bytes:
    """Return the body without its codings, at most `most` bytes. Raises NotDecoded."""
    names = list_codings(headers)
    if len(names) > _MOST_CODINGS:
        raise NotDecoded(f"content-encoding names {len(names)} codings")
    for name in reversed(names):
        body = _decode(name, body, most)
    return body


def encode(body: bytes, headers: Headers) -> bytes:
    """Encode a body in the codings that the headers name, which `decode` knows."""
    for name in list_codings(headers):
        is_gzip = name in _GZIP
        body = gzip.compress(body, _LEVEL, mtime=0) if is_gzip else zlib.compress(body, _LEVEL)
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


JSON_LENGTH: Final = "inference-header-content-length"
"""The header that says how much of a body is JSON, if V2's tensors follow it."""
_MOST_DIGITS: Final = 18


def read_size(text: str) -> int | None:
    """Return a number of bytes; None if the text is none."""
    is_size = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_size else None


def json_part(body: bytes, headers: Headers) -> int:
    """Return the length of the JSON part of a body. Raises NotDecoded."""
    value = header(headers, JSON_LENGTH)
    if value is None:
        return len(body)
    size = read_size(text := value.strip())
    if size is None:
        raise NotDecoded(f"{JSON_LENGTH} is {text[:40]!r}, which is no length")
    if size > len(body):
        raise NotDecoded(f"{JSON_LENGTH} is {size}, and the body has {len(body)} bytes")
    return size


def change_json(
    body: bytes, headers: Headers, change: Callable[[bytes], bytes]
) -> tuple[bytes, Headers] | None:
    """Return a request whose JSON is changed, in its codings and with its lengths corrected; None
    if nothing changes, or it cannot be read."""
    try:
        plain = decode(body, headers, MOST_STRIPPED)
        length = json_part(plain, headers)
    except NotDecoded:
        return None
    changed = change(plain[:length])
    if len(changed) == length:
        return None
    sent = encode(changed + plain[length:], headers)
    lengths = {"content-length": str(len(sent)), JSON_LENGTH: str(len(changed))}
    return sent, correct_headers(headers, lengths)


_LINES: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def utf8(body: bytes) -> bytes:
    """Return JSON bytes as UTF-8 without a byte order mark, whatever their coding."""
    if detect_encoding(body).startswith("utf-8"):
        return body.removeprefix(_BYTE_ORDER_MARK)
    return json_text.text_of(body).encode("utf-8", "surrogatepass")


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


@dataclass(frozen=True, slots=True)
class Document:
    """A body or a part of it, and what was read of it."""

    side: CaptureSide
    raw: bytes = field(repr=False)
    """Its bytes without content coding; unchanged if they cannot be decoded."""
    value: Any = field(default=None, repr=False)
    """Its JSON, or V2's content; None if it is null, empty, or unreadable."""
    problem: Problem | None = None

    @property
    def text(self) -> bytes:
        """Its JSON as it is written, in UTF-8."""
        return utf8(self.raw)

    @property
    def members(self) -> dict[str, Json]:
        """The members of its object; none if it is no object."""
        return as_object(self.value)

    def as_json(self, name: str | None = None, *, exact: bool = False) -> "Document":
        """Read the bytes as JSON, if there are any. `name`: their name in a sentence; None if they
        are the body; `exact`: keep numbers as they were written."""
        if self.problem or (name is None and not self.raw.strip()):
            return self
        try:
            read = json_text.read_exactly if exact else read_json
            return replace(self, value=read(self.raw))
        except UnreadableJson as exc:
            sentence = f"{name or NAMES[self.side]} is not JSON: {exc}"
            return replace(self, problem=Problem(sentence, (self.side, "not_json")))

    def answer(self) -> bytes | None:
        """Return an answer's own JSON; another body as `{"body": …}`, which no task type mistakes
        for a prediction; None if there was no answer."""
        if not self.raw.strip():
            return None
        return written({"body": text_or_base64(self.raw)}) if self.problem else self.raw

    def find_error(self, status: int | None = None) -> str | None:
        """Return the text of a failure: of `{"error": …}`; with a `status` of failure, any text."""
        error = self.members.get("error")
        if error:
            return (_find_text(error) or write_json(error))[:MOST_ERROR]
        if (status or 0) < 400:
            return None
        text = self.raw[:MOST_ERROR].decode("utf-8", "replace").strip()
        return _find_text(self.value) or text or None


def read_bytes(body: Body, headers: Headers, side: CaptureSide) -> Document:
    """Read a body's bytes without content coding; still coded if that cannot be undone."""
    missing = Problem.missing(body, side)
    document = Document(side, body.bytes, None, missing)
    try:
        return replace(document, raw=decode(body.bytes, headers))
    except NotDecoded as exc:
        sentence = f"{NAMES[side]} is kept coded, as it came: {exc}"
        return replace(document, problem=missing or Problem.unreadable(sentence, side))


def read_message(raw: bytes, side: CaptureSide, name: str, what: str | None = None) -> Document:
    """Read a message of gRPC. `what`: what it is called in a sentence; None if it is the whole."""
    message = parsed(name, raw)
    sentence = f"{what or NAMES[side]} is no {name.rpartition('.')[2]}"
    problem = Problem.unreadable(sentence, side) if message is None else None
    return Document(side, raw, message, problem)


def read_both(exchange: Exchange) -> tuple[Document, Document]:
    """Read the bytes of a request and of its answer."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    return request, read_bytes(exchange.response, exchange.response_headers, "response")


def written(value: Any) -> bytes:
    """Write a value as JSON in UTF-8; numbers that were read exactly stay exact."""
    try:
        return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    except TypeError:  # exact numbers, lone surrogates, more than 254 levels
        return write_json(value).encode("utf-8", "backslashreplace")


def data_of(value: Json, text: bytes = b"") -> tuple[bytes, str]:
    """Return a datum and its content type: a text, or JSON as it is written in `text`."""
    is_text = type(value) is str
    return (value.encode("utf-8", "backslashreplace"), TEXT) if is_text else (text, JSON)


def as_object(value: Json) -> dict[str, Json]:
    """Return an object; an empty one instead of any other value."""
    return value if isinstance(value, dict) else {}


def list_objects(value: Json) -> list[dict[str, Json]]:
    """Return the objects in a list; none of any other value."""
    return [it for it in value if isinstance(it, dict)] if isinstance(value, list) else []


def walk(value: Json) -> Iterator[Json]:
    """Yield a value of JSON, and all values inside it."""
    waiting = [value]
    while waiting:
        yield (value := waiting.pop())
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def is_text(raw: bytes) -> bool:
    """Return whether bytes are a text."""
    try:
        return "\0" not in raw.decode()
    except UnicodeDecodeError:
        return False


def text_or_base64(raw: bytes) -> Any:
    """Return bytes as JSON: text if they are UTF-8, else `{"b64": "…"}`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"b64": b64encode(raw).decode()}


def media_type(headers: Headers) -> str:
    """Return the content type without parameters, in lower case; empty if there is none."""
    return (header(headers, "content-type") or "").partition(";")[0].strip().lower()


def write_answer(outputs: Mapping[str, list[Any]], **members: Any) -> bytes:
    """Return an answer in V2's JSON, without members that are None. The first dimension of an
    output counts its elements."""
    head = {name: value for name, value in members.items() if value is not None}
    written_outputs = [_write_output(name, data) for name, data in outputs.items()]
    return written({**head, "outputs": written_outputs})


def _write_output(name: str, data: list[Any]) -> dict[str, Any]:
    shape: list[int] = []
    first: Json = data
    while isinstance(first, list):
        shape.append(len(first))
        first = first[0] if first else None
    if isinstance(first, json_text.Number):
        datatype = "INT64" if first.lstrip("-").isdecimal() else "FP64"
    else:
        datatype = {bool: "BOOL", int: "INT64", float: "FP64"}.get(type(first), "BYTES")
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


_ERROR_NAMES: Final = ("message", "detail", "error")


def _find_text(value: Json, levels: int = 3) -> str | None:
    if isinstance(value, dict):
        texts = (_find_text(value.get(name), levels - 1) for name in _ERROR_NAMES if levels)
        return next(filter(None, texts), None)
    if isinstance(value, list) and value:
        return write_json(value)[:MOST_ERROR]
    return value[:MOST_ERROR] if type(value) is str and value else None
