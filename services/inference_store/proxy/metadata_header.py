"""Metadata in a header: for protocols whose bodies have no field for them, and for all others.

The value is the list of `{key, type, value}` (or the two sections) as JSON text. HTTP specifies
latin-1 for characters beyond ASCII, but clients send UTF-8: the bytes decide. JSON escapes always
work.
"""

from typing import Final

from inference_store.inference.json_text import UnreadableJson, read_json, write_json

from .base64_text import from_base64
from .exchange import Headers

METADATA_HEADER: Final = "inference-store-metadata"
BINARY_HEADER: Final = "inference-store-metadata-bin"
"""The same over gRPC, whose other metadata is ASCII only: UTF-8, in base64 on the wire."""


def from_header(headers: Headers) -> bytes | None:
    """Return the envelope in the request's headers, as JSON in UTF-8; None if there is none.

    Several headers are one list of envelopes; by key, the last wins. A value that is not JSON
    becomes a JSON string: the ingester keeps it, and reports what is wrong with it.
    """
    values = (_value(name, value) for name, value in headers)
    envelopes = [_envelope(value) for value in values if value.strip()]
    if len(envelopes) < 2:
        return envelopes[0] if envelopes else None
    return b"[" + b",".join(envelopes) + b"]"


def _value(name: str, value: str) -> bytes:
    if name == BINARY_HEADER:
        raw = from_base64(value)
        return utf8(value if raw is None else raw.decode("latin-1"))
    return utf8(value) if name == METADATA_HEADER else b""


def utf8(value: str) -> bytes:
    """Return a header's text as UTF-8, whether its bytes were UTF-8 or latin-1."""
    try:
        raw = value.encode("latin-1")
        raw.decode()
    except UnicodeEncodeError:  # it was already decoded in another coding
        return value.encode("utf-8", "backslashreplace")
    except UnicodeDecodeError:
        return value.encode()
    return raw


def _envelope(value: bytes) -> bytes:
    """Return JSON unchanged; several values that a proxy joined with commas as a list; anything
    else as a JSON string."""
    # JSON in UTF-8 has no NUL; in UTF-16 it has, and that cannot be merged with others.
    for document in () if b"\0" in value else (value, b"[" + value + b"]"):
        try:
            read_json(document)
        except UnreadableJson:
            continue
        return document
    return write_json(value.decode()).encode()
