"""Metadata in a header: for protocols whose bodies have no place for it, and for all others.

The value is the list of `{key, type, value}` (or the two sections) as JSON text. HTTP says latin-1
of what is beyond ASCII, clients send UTF-8: the bytes decide. JSON's own escapes are always right.
"""

from typing import Final

from inference_store.inference.json_text import UnreadableJson, read_json, write_json

from .base64_text import from_base64
from .exchange import Headers

METADATA_HEADER: Final = "inference-store-metadata"
BINARY_HEADER: Final = "inference-store-metadata-bin"
"""The same over gRPC, whose other metadata is ASCII alone: UTF-8, in base64 on the wire."""


def from_header(headers: Headers) -> bytes | None:
    """The envelope in the request's headers, as JSON in UTF-8; None where there is none.

    Several headers are one list of envelopes; by key, the last wins. What is not JSON is given on
    as a JSON string: the ingester keeps it, and says what is wrong with it.
    """
    values = (_value(name, value) for name, value in headers)
    envelopes = [_envelope(value) for value in values if value.strip()]
    if len(envelopes) < 2:
        return envelopes[0] if envelopes else None
    return b"[" + b",".join(envelopes) + b"]"


def _value(name: str, value: str) -> bytes:
    if name == BINARY_HEADER:
        found = from_base64(value)
        return utf8(value if found is None else found.decode("latin-1"))
    return utf8(value) if name == METADATA_HEADER else b""


def utf8(value: str) -> bytes:
    """A header's text as UTF-8, whether its bytes were that or latin-1."""
    try:
        raw = value.encode("latin-1")
        raw.decode()
    except UnicodeEncodeError:  # it was decoded as something else already
        return value.encode("utf-8", "backslashreplace")
    except UnicodeDecodeError:
        return value.encode()
    return raw


def _envelope(value: bytes) -> bytes:
    """JSON as it came; several that a proxy joined with commas as a list; else a JSON string."""
    # NUL is in no JSON of UTF-8; of UTF-16 it would be, which cannot be put together with others.
    for found in () if b"\0" in value else (value, b"[" + value + b"]"):
        try:
            read_json(found)
        except UnreadableJson:
            continue
        return found
    return write_json(value.decode()).encode()
