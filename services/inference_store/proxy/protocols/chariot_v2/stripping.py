"""A request without `parameters.metadata`; all else in it as it was, byte for byte."""

from typing import Final

from inference_store.inference.json_text import UnreadableJson
from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.metadata_header import utf8
from inference_store.proxy.protocols.content_encoding import NotDecoded, decode, encode
from inference_store.proxy.protocols.documents import media_type
from inference_store.proxy.protocols.protocol import MOST_STRIPPED
from inference_store.proxy.protocols.v2.stripping import without_metadata

from .request import LINES, PARAMETERS

_BEFORE: Final = b'{"parameters":'
_AFTER: Final = b"}"


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """The body and its headers; None: there is no metadata in it, or it cannot be read."""
    kind = media_type(headers)
    if kind not in {"", "application/json", LINES}:
        return _header_stripped(body, headers)
    try:
        raw = decode(body, headers, MOST_STRIPPED)
    except NotDecoded:
        return None
    lines = raw.split(b"\n") if kind == LINES else [raw]
    less = b"\n".join([_stripped(line) for line in lines])
    if len(less) == len(raw):
        return None
    coded = encode(less, headers)
    return coded, [_sized(name, value, len(coded)) for name, value in headers]


def _header_stripped(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    value = header(headers, PARAMETERS)
    raw = b"" if value is None else utf8(value)
    less = _stripped(_BEFORE + raw + _AFTER)[len(_BEFORE) : -len(_AFTER)]
    if len(less) == len(raw):
        return None
    new = (PARAMETERS, less.decode("latin-1"))
    return body, [new if name == PARAMETERS else (name, value) for name, value in headers]


def _sized(name: str, value: str, size: int) -> tuple[str, str]:
    return name, str(size) if name == "content-length" else value


def _stripped(text: bytes) -> bytes:
    """A JSON text without its metadata; as it is where it cannot be read."""
    try:
        return without_metadata(text) or text
    except UnreadableJson:
        return text
