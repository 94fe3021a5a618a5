"""Removes `parameters.metadata` from a request; all other bytes stay unchanged."""

from typing import Final

from inference_store.inference.json_text import UnreadableJson
from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.metadata_header import utf8
from inference_store.proxy.protocols.content_encoding import NotDecoded, decode, encode
from inference_store.proxy.protocols.documents import media_type
from inference_store.proxy.protocols.protocol import MOST_STRIPPED
from inference_store.proxy.protocols.v2.stripping import remove_metadata

from .request import LINES, PARAMETERS

_BEFORE: Final = b'{"parameters":'
_AFTER: Final = b"}"


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the body and its headers; None if it has no metadata, or cannot be read."""
    kind = media_type(headers)
    if kind not in {"", "application/json", LINES}:
        return _strip_header(body, headers)
    try:
        raw = decode(body, headers, MOST_STRIPPED)
    except NotDecoded:
        return None
    lines = raw.split(b"\n") if kind == LINES else [raw]
    stripped = b"\n".join([_strip_json(line) for line in lines])
    if len(stripped) == len(raw):
        return None
    coded = encode(stripped, headers)
    return coded, [_correct_length(name, value, len(coded)) for name, value in headers]


def _strip_header(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    value = header(headers, PARAMETERS)
    raw = b"" if value is None else utf8(value)
    stripped = _strip_json(_BEFORE + raw + _AFTER)[len(_BEFORE) : -len(_AFTER)]
    if len(stripped) == len(raw):
        return None
    new = (PARAMETERS, stripped.decode("latin-1"))
    return body, [new if name == PARAMETERS else (name, value) for name, value in headers]


def _correct_length(name: str, value: str, size: int) -> tuple[str, str]:
    return name, str(size) if name == "content-length" else value


def _strip_json(text: bytes) -> bytes:
    """Return a JSON text without its metadata; unchanged if it cannot be read."""
    try:
        return remove_metadata(text) or text
    except UnreadableJson:
        return text
