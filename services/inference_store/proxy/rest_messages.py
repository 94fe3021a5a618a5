"""What passes through the REST port: heads and headers, captured bodies, the room for requests that
metadata are removed from, and the connections to the model servers.

Headers are forwarded unchanged, except those of a single connection. Requests are held whole while
metadata are removed. If there is no room, a request is forwarded unchanged, and is counted: serving
comes first.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from multidict import CIMultiDict

from inference_store.platform.metrics import UNSTRIPPED, from_zero
from inference_store.platform.settings import trusting
from inference_store.platform.uvicorn_server import BoundedHeads
from inference_store.proxy.capture import Reservation
from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Body, Headers
from inference_store.proxy.protocols.protocol import MOST_STRIPPED, Strip

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


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
    listed = b",".join(value.lower() for name, value in lower if name == b"connection")
    # headers that frame a message belong to it, whatever a peer says
    listed_names = {token.strip() for token in listed.split(b",")} - {b"content-length", b"host"}
    hops = _HOP_BY_HOP | listed_names
    return [(name, value) for name, value in lower if name not in hops]


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


EMPTY_QUERY: Final = "inference_store.empty_query"
"""The extension of a scope whose target ends with a question mark."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# If the caller has left, it answers the first probe with a reset, which fails the next one.
_PROBES: Final = 3
_PROBE_SECONDS: Final = 0.3


class ForwardedHeads(BoundedHeads):
    """The heads of forwarded requests."""

    def on_headers_complete(self) -> None:
        if self.url.endswith(b"?"):
            self.scope["extensions"] = {EMPTY_QUERY: {}}
        super().on_headers_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a caller that has only stopped sending (RFC 9112, section 9.6): if
        its request is complete it is answered, and then the connection ends."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.scheme == "https":
            return False
        cycle.keep_alive = False
        self._look_for_caller(_PROBES)
        return True

    def _look_for_caller(self, times: int) -> None:
        """Probe whether the caller still reads: one that has left sends the same as one that reads.
        An interim answer, which callers may ignore (RFC 9110, section 15.2), distinguishes them."""
        cycle = self.cycle
        begun = self.pipeline or cycle.response_started or self.transport.is_closing()
        if begun or cycle.scope["http_version"] == "1.0":
            return
        self.transport.write(_CONTINUE)
        if times > 1:
            self.loop.call_later(_PROBE_SECONDS, self._look_for_caller, times - 1)


# Bodies parsed at once: parsing takes many times a body's bytes.
_AT_ONCE: Final = 2
_REASONS: Final = ("large", "no_room")


class Stripping:
    """The room for all requests of a proxy; `most`: the most bytes held at once."""

    def __init__(self, most: int) -> None:
        self.free = most
        # in threads: parsing a large body would delay all other calls
        self.threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="strip")
        from_zero(UNSTRIPPED, _REASONS)


class HeldRequest:
    """The parts of one request, which the caller must release."""

    def __init__(self, stripping: Stripping) -> None:
        self._stripping = stripping
        self._reserved = 0
        self.parts: list[bytes] = []

    def add(self, part: bytes) -> bool:
        """Hold a part; return False if the request must be forwarded unchanged, with all its
        parts."""
        self.parts.append(part)
        large = self._reserved + len(part) > MOST_STRIPPED
        if large or len(part) > self._stripping.free:
            UNSTRIPPED.labels("large" if large else "no_room").inc()
            return False
        self._reserved += len(part)
        self._stripping.free -= len(part)
        return True

    async def strip_metadata(self, strip: Strip, headers: Headers) -> tuple[bytes, Headers | None]:
        """Return the body without metadata, and its headers if it contained any."""
        body = b"".join(self.parts)
        self.parts.clear()  # otherwise memory holds it twice
        loop = asyncio.get_running_loop()
        stripped = await loop.run_in_executor(self._stripping.threads, strip, body, headers)
        return (body, None) if stripped is None else stripped

    def release(self) -> None:
        """Free the memory of a request that was forwarded or given up."""
        self._stripping.free += self._reserved
        self._reserved = 0


# Smaller parts of a request are merged: each costs more than its bytes.
_SMALL: Final = 4096


class CapturedBody:
    """The captured parts of a body: all of them, while there is memory."""

    def __init__(
        self, body: Body, reservation: Reservation | None, reserved: int | None = None
    ) -> None:
        """`reserved`: for a request, the bytes that were reserved when the call began; None for an
        answer, which may be a stream: its beginning is kept if there is no memory for all of it."""
        self._body = body
        self._reservation = reservation
        self._is_request = reserved is not None
        self._reserved = 0 if reservation is None or reservation.refused else reserved or 0
        self._parts: list[bytes] = []
        body.parts = self._parts

    def add(self, part: bytes) -> None:
        """Keep a part, if there is memory for it."""
        self._body.size += len(part)
        if self._reservation is None or not part or not self._body.whole:
            return
        if self._body.size <= self._reserved:
            if self._parts and len(self._parts[-1]) + len(part) <= _SMALL:
                self._parts[-1] += part
            else:
                self._parts.append(part)
        elif self._reservation.reserve_more(len(part)):
            self._parts.append(part)
        else:
            self._body.whole = False
            if self._is_request:
                self._parts.clear()


# The client adds nothing to the caller's headers.
_OURS: Final = frozenset({"Accept", "Accept-Encoding", "User-Agent", "Content-Type"})
_LONGEST_HEADER: Final = 64 * 1024


class Upstreams:
    """A session for each upstream that answers REST; opened inside the running loop."""

    def __init__(self, entries: Sequence[UpstreamEntry]) -> None:
        self._sessions = {
            entry.name: _open_session(entry) for entry in entries if entry.url is not None
        }

    def session(self, name: str) -> ClientSession | None:
        """Return an upstream's session; None if it answers only gRPC."""
        return self._sessions.get(name)

    async def close(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()


def _open_session(entry: UpstreamEntry) -> ClientSession:
    tls: ssl.SSLContext | None = None
    if (entry.url or "").startswith("https://"):
        tls = context = trusting(entry.ca_file, beside_system=True)
        if entry.certificate_file is not None:
            context.present(entry.certificate_file, entry.key_file)
    connector = TCPConnector(
        limit=entry.connections,
        limit_per_host=entry.connections,
        keepalive_timeout=entry.keepalive_seconds,
        ssl=tls or True,
    )
    timeout = ClientTimeout(
        total=None,
        # includes the wait for a free connection
        connect=entry.read_seconds,
        sock_connect=entry.connect_seconds,
        sock_read=entry.read_seconds,
    )
    return ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=DummyCookieJar(),
        skip_auto_headers=_OURS,
        max_line_size=_LONGEST_HEADER,
        max_field_size=_LONGEST_HEADER,
    )
