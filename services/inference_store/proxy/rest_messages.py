"""What passes through the REST port: heads and headers, captured bodies, the room for requests that
metadata are removed from, and the connections to the model servers.

Headers are forwarded unchanged, except those of a single connection. Requests are held whole while
metadata are removed. If there is no room, a request is forwarded unchanged, and is counted: serving
comes first.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from yarl import URL

from inference_store.platform.metrics import UNSTRIPPED, from_zero
from inference_store.platform.settings import trusting
from inference_store.platform.uvicorn_server import BoundedHeads
from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.protocol import MOST_STRIPPED, Strip

Raw: TypeAlias = Sequence[tuple[bytes, bytes]]
# RFC 9110, section 7.6.1, and what older clients send.
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"}
    | {b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Without a body, a request by these has no length.
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that belong to the message, names in lower case, in order."""
    lower = [(name.lower(), value) for name, value in raw]
    hops: Set[bytes] = _HOP_BY_HOP
    for name, value in lower:
        if name == b"connection":
            # headers that frame a message belong to it, whatever a peer says
            listed = {token.strip() for token in value.lower().split(b",")}
            hops |= listed - {b"content-length", b"host"}
    return [header for header in lower if header[0] not in hops]


def encode_head(
    method: str, target: bytes, headers: Raw, body: bytes | AsyncIterator[bytes], host: str
) -> tuple[bytes, bool]:
    """Return the head of a request to an upstream, and whether its body is sent in chunks; `host`:
    that of the upstream, if the caller names none."""
    pieces = [b"%b %b HTTP/1.1\r\n" % (method.encode(), target)]
    has_host = is_framed = is_chunked = False
    for name, value in headers:
        has_host = has_host or name == b"host"
        is_framed = is_framed or name == b"content-length"
        if name != b"expect":  # the HTTP server has answered it
            pieces += (name, b": ", value, b"\r\n")
    if not has_host:  # a caller of HTTP/1.0
        pieces.append(f"host: {host}\r\n".encode())
    if is_framed:
        pass
    elif not isinstance(body, bytes):
        is_chunked = True
        pieces.append(b"transfer-encoding: chunked\r\n")
    elif body or method not in _WITHOUT_BODY:
        pieces.append(b"content-length: %d\r\n" % len(body))
    return b"".join((*pieces, b"\r\n")), is_chunked


def as_text(headers: Raw) -> Headers:
    """Return headers as an exchange holds them."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def as_raw(headers: Headers) -> Raw:
    """Return headers as bytes: the reverse of `as_text`."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def read_length(headers: Raw) -> int | None:
    """Return the body's length; None if it is not declared."""
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 19 else None
    return None


CONNECTION: Final = "inference_store.connection"
"""The extension of a scope that has its connection, and whether its target ends with a question
mark."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# If the caller has left, it answers the first probe with a reset, which fails the next one.
_PROBES: Final = 3
_PROBE_SECONDS: Final = 0.3


class _HeldWrites(list[bytes]):
    """What is written to a transport, and whether it closes then."""

    write, closes = list[bytes].append, False

    def close(self) -> None:
        self.closes = True


class ForwardedHeads(BoundedHeads):
    """The heads of forwarded requests."""

    on_lost: Callable[[], None] | None = None
    """Called if the connection is lost: cheaper than a task that waits for it."""

    def on_headers_complete(self) -> None:
        extensions: dict[str, Any] = {CONNECTION: (self, self.url.endswith(b"?"))}
        self.scope["extensions"] = extensions
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    @contextmanager
    def corked(self) -> Iterator[None]:
        """Write at the end all that the answer is until then: each write calls the system."""
        cycle, transport = self.cycle, self.transport
        held: Any = _HeldWrites()
        cycle.transport = held
        try:
            yield
        finally:
            cycle.transport = transport
            if held and not transport.is_closing():
                transport.writelines(held)
            if held.closes:
                transport.close()

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
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="strip")
        from_zero(UNSTRIPPED, _REASONS)

    def take(self, held: int, size: int) -> bool:
        """Take room for a further part of a request that holds so much; return False if it must be
        forwarded unchanged, with all its parts."""
        is_large = held + size > MOST_STRIPPED
        if is_large or size > self.free:
            UNSTRIPPED.labels("large" if is_large else "no_room").inc()
            return False
        self.free -= size
        return True

    async def strip(
        self, strip: Strip, body: bytes, headers: Headers
    ) -> tuple[bytes, Headers] | None:
        """Return the body without metadata, and its headers; None if it contained none."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, strip, body, headers)


_LONGEST_HEADER: Final = 64 * 1024


class _Answers(ResponseHandler):
    """The HTTP client's protocol, which closes a connection whose framing breaks within an answer,
    but lets the answer's reader wait forever."""

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        super().set_exception(exc, exc_cause or exc)
        payload = self._payload
        if isinstance(exc, HttpProcessingError) and payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError("broke off"))


class Upstream:
    """The connections to a model server, of the HTTP client below its sessions: a session's request
    takes twice the time of all that is done here. Build it inside the running loop."""

    def __init__(self, entry: UpstreamEntry) -> None:
        tls: ssl.SSLContext | None = None
        if (entry.url or "").startswith("https://"):
            tls = context = trusting(entry.ca_file, beside_system=True)
            if entry.certificate_file is not None:
                context.present(entry.certificate_file, entry.key_file)
        connector: Any = aiohttp.TCPConnector(
            limit=entry.connections, keepalive_timeout=entry.keepalive_seconds, ssl=tls or True
        )
        connector._factory = partial(_Answers, asyncio.get_running_loop())
        self._connector: aiohttp.TCPConnector = connector
        self._timeout = aiohttp.ClientTimeout(
            connect=entry.read_seconds,  # includes the wait for a free connection
            sock_connect=entry.connect_seconds,
        )
        self._read_seconds = entry.read_seconds
        # it leads to the same server as every other
        self._request = aiohttp.ClientRequest("GET", URL(entry.url or ""))
        self.host = self._request.headers["Host"]
        self.path = self._request.url.raw_path.rstrip("/").encode()

    async def connect(self, method: str) -> tuple[Connection, ResponseHandler, asyncio.Transport]:
        """Return a connection that awaits the answer to a request; close or release it. Raises
        ClientError."""
        try:
            connection = await self._connector.connect(self._request, [], self._timeout)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            connection.close()
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=self._read_seconds,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )
        return connection, protocol, transport

    async def read_head(self, protocol: ResponseHandler) -> tuple[RawResponseMessage, StreamReader]:
        """Return the head of the final answer, and its body. Raises ClientError."""
        while True:
            try:
                message, content = await protocol.read()
            except HttpProcessingError as exc:
                raise aiohttp.ClientResponseError(self._request.request_info, ()) from exc
            if not 100 <= message.code < 200 or message.code == 101:
                return message, content

    async def close(self) -> None:
        await self._connector.close()


@asynccontextmanager
async def open_upstreams(entries: Sequence[UpstreamEntry]) -> AsyncIterator[Mapping[str, Upstream]]:
    """Yield those that answer REST, by name; their connections close with the context."""
    upstreams = {entry.name: Upstream(entry) for entry in entries if entry.url is not None}
    try:
        yield upstreams
    finally:
        for upstream in upstreams.values():
            await upstream.close()
