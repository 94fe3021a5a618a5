"""Decodes and encodes the content codings of bodies, within a limit."""

import gzip
import zlib
from typing import Final

from inference_store.proxy.exchange import Headers

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
