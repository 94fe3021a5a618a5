"""Forwards headers unchanged, except those of a single connection."""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from multidict import CIMultiDict

from inference_store.proxy.exchange import Headers

Raw: TypeAlias = Sequence[tuple[bytes, bytes]]
# RFC 9110, section 7.6.1, and what older clients send.
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The HTTP server answers it before we see the body.
_EXPECT: Final = b"expect"


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to the message, names in lower case, in order."""
    lower = [(name.lower(), value) for name, value in raw]
    connection_headers = _list_connection_headers(lower)
    return [
        (name, value)
        for name, value in lower
        if name not in _HOP_BY_HOP and name not in connection_headers
    ]


def _list_connection_headers(raw: Raw) -> frozenset[bytes]:
    tokens = (
        token.strip().lower()
        for name, value in raw
        if name == b"connection"
        for token in value.split(b",")
    )
    # headers that frame a message belong to it, whatever a peer says
    return frozenset(tokens) - {b"content-length", b"host"}


def to_upstream(headers: Raw) -> CIMultiDict[str]:
    """Return headers for the HTTP client, which writes UTF-8: other values are converted to it."""
    return CIMultiDict(
        (name.decode("latin-1"), _text(value)) for name, value in headers if name != _EXPECT
    )


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def as_text(headers: Raw) -> tuple[tuple[str, str], ...]:
    """Return headers as an exchange holds them."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def as_raw(headers: Headers) -> Raw:
    """Return headers as bytes: the reverse of `as_text`."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def read_length(headers: Raw) -> int | None:
    """Return the body's length; None if it is not declared."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 19 else None
    return None
