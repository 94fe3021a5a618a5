"""Answers compressed as the request's Accept-Encoding allows.

A stream is flushed piece by piece, so that a reader gets each line as early as it would without
compression.
"""

import asyncio
import gzip
import zlib
from typing import Final, Protocol

import cramjam
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.export.formats import FORMATS

from .http import choose_coding

_LEAST_BYTES: Final = 1024  # a smaller answer fits into one packet as it is
_LARGE_BYTES: Final = 256 * 1024  # this takes about a millisecond: not on the event loop
# Higher levels save a tenth of the bytes, for twice the time.
_LEVELS: Final = {"gzip": 1, "zstd": 1}
_SMALLEST: Final = {"gzip": 9, "zstd": 19}
_GZIP_WINDOW: Final = 31  # zlib's largest window, 15, and 16 for a gzip header
# Pictures, audio and archives are compressed already.
_TYPES: Final = (
    *("text/", "application/json", "application/x-ndjson", "application/problem+json"),
    *FORMATS,
)
_SCRIPTS: Final = ("application/javascript", "image/svg+xml")


class Compressor(Protocol):
    """A content coding applied to one answer."""

    def next(self, piece: bytes, *, last: bool) -> bytes:
        """Return the piece compressed, as a whole; and the end, after the last one."""


class Gzip:
    """RFC 1952."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVELS["gzip"], zlib.DEFLATED, _GZIP_WINDOW)

    def next(self, piece: bytes, *, last: bool) -> bytes:
        """See Compressor."""
        end = self._deflate.flush if last else self._flush
        return self._deflate.compress(piece) + end()

    def _flush(self) -> bytes:
        return self._deflate.flush(zlib.Z_SYNC_FLUSH)


class Zstd:
    """RFC 8878."""

    def __init__(self) -> None:
        self._frame = cramjam.zstd.Compressor(_LEVELS["zstd"])

    def next(self, piece: bytes, *, last: bool) -> bytes:
        """See Compressor."""
        self._frame.compress(piece)
        return bytes(self._frame.finish() if last else self._frame.flush())


COMPRESSORS: Final[dict[str, type[Gzip] | type[Zstd]]] = {"gzip": Gzip, "zstd": Zstd}


def compress(coding: str, content: bytes) -> bytes:
    """Compress what is kept, as small as it gets: it is compressed once and sent often."""
    if coding == "zstd":
        return bytes(cramjam.zstd.compress(content, level=_SMALLEST["zstd"]))
    return gzip.compress(content, _SMALLEST["gzip"], mtime=0)


class Compression:
    """ASGI: compresses text answers for clients that accept it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = None
        if scope["type"] == "http":
            coding = choose_coding(",".join(Headers(scope=scope).getlist("accept-encoding")))
        await self._app(scope, receive, _Sender(coding, send) if coding else send)


class _Sender:
    def __init__(self, coding: str, send: Send) -> None:
        self._coding, self._send = coding, send
        self._start: Message | None = None
        self._compressor: Compressor | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message  # the headers depend on the first piece
        elif message["type"] == "http.response.body":
            await self._send_body(message)
        else:
            await self._send(message)

    async def _send_body(self, message: Message) -> None:
        piece, last = message.get("body", b""), not message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if _is_compressible(start) and not (last and len(piece) < _LEAST_BYTES):
                self._compressor = COMPRESSORS[self._coding]()
                _describe(start, self._coding)
            await self._send(start)
        if self._compressor is None:
            await self._send(message)
        elif piece or last:
            compressed = await _compress_piece(self._compressor, piece, last=last)
            await self._send({**message, "body": compressed})


async def _compress_piece(compressor: Compressor, piece: bytes, *, last: bool) -> bytes:
    if len(piece) < _LARGE_BYTES:
        return compressor.next(piece, last=last)
    return await asyncio.to_thread(compressor.next, piece, last=last)


def _is_compressible(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").lower()
    whole = start["status"] not in {204, 206, 304}
    return whole and "content-encoding" not in headers and kind.startswith(_TYPES + _SCRIPTS)


def _describe(start: Message, coding: str) -> None:
    headers = MutableHeaders(scope=start)
    headers["Content-Encoding"] = coding
    headers.add_vary_header("Accept-Encoding")
    del headers["Content-Length"]
    tag = headers.get("ETag", "")
    # these are other bytes: no range of them is asked for by it
    if "Accept-Ranges" in headers and tag.startswith('"'):
        headers["ETag"] = f"W/{tag}"
