"""uvicorn on counted connections with limits."""

import asyncio
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import IPPROTO_TCP, SO_LINGER, SOL_SOCKET, TCP_NODELAY, socket
from ssl import SSLContext
from typing import Any, Final

import structlog
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .metrics import CONNECTIONS_LATE
from .serving import Connections, Late, Limits, Message, Receive, Scope, Send
from .settings import presenting

_HANDSHAKE_SECONDS: Final = 15.0
_SHORT_OF_FILES_SECONDS: Final = 0.5
_log = structlog.get_logger()


def build_config(
    app: Any,
    files: tuple[Path | None, Path | None],
    *,
    grace_seconds: int,
    http: Any = None,
    **others: Any,
) -> uvicorn.Config:
    """Return how a port is served. `files`: its certificate and key; `http`: the protocol, by
    default BoundedHeads; `others`: what else uvicorn takes."""
    certificate, key = files
    return uvicorn.Config(
        app,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        http=http or BoundedHeads,
        ws="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # connections are told apart by their own addresses inside
        timeout_graceful_shutdown=grace_seconds,
        **others,
    )


class GuardedServer(uvicorn.Server):
    """Serves requests over the given sockets; logs `open` once it takes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[socket],
        connections: Connections,
        limits: Limits,
    ) -> None:
        super().__init__(config)
        self._own_sockets = sockets
        self._connections = connections
        self._limits = limits
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._tls: SSLContext | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start serving; uvicorn itself does not listen."""
        await super().startup(sockets or [])
        # uvicorn's own would never read renewed files
        certificate, key = self.config.ssl_certfile, self.config.ssl_keyfile
        if certificate and key:
            self._tls = presenting(Path(certificate), Path(key))
        for listening in self._own_sockets:
            self._accepting.append(asyncio.create_task(self._accept_connections(listening)))
            host, port = listening.getsockname()[:2]
            action = f"{self._connections.port}_listening"
            _log.info(f"{self._connections.port} open", action=action, host=host, port=port)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the service handles them

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Take no more connections, and let the open ones end."""
        for task in (*self._accepting, *self._opening):
            task.cancel()
        await asyncio.gather(*self._accepting, *self._opening, return_exceptions=True)
        for listening in self._own_sockets:
            listening.close()
        await super().shutdown(sockets)

    async def _accept_connections(self, listening: socket) -> None:
        """A refused connection is closed at once: the caller learns it sooner than from a stuck
        queue."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:  # no file descriptors, for one
                _log.error("no connection taken", action="accept_failed", error=str(error))
                await asyncio.sleep(_SHORT_OF_FILES_SECONDS)
                continue
            if self._connections.take(address[0]):
                task = loop.create_task(self._open(accepted, address[0]))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()

    async def _open(self, accepted: socket, address: str) -> None:
        """Open a connection. It is released once, by itself or, if it never began, here."""
        make: Any = self.config.http_protocol_class
        opened: BoundedHeads = make(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            connections=self._connections,
            limits=self._limits,
            address=address,
        )
        handshake = None if self._tls is None else _HANDSHAKE_SECONDS
        try:
            accepted.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: opened, accepted, ssl=self._tls, ssl_handshake_timeout=handshake
            )
        except BaseException as error:
            if opened.transport is None:
                self._connections.release(address)
                with suppress(OSError):
                    accepted.close()
            if not isinstance(error, Exception):
                raise


LEAST_RATE: Final = 500
"""The bytes per second that a body needs to arrive with, once its seconds are over."""


class _Body:
    """Reads a body within its time limit. Time in which the application does not read is not
    counted."""

    def __init__(
        self, receive: Receive, connection: "BoundedHeads", cycle: RequestResponseCycle
    ) -> None:
        self._receive, self._cycle = receive, cycle
        self._connection = connection
        self._seconds_left = connection.limits.body
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:  # a further call waits for the caller to leave
            return await self._receive()
        if self._cycle.message_event.is_set() and not self._cycle.more_body:
            self._is_whole = True  # all of it is there: nothing to wait for
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(max(0.0, self._seconds_left)):
                message = await self._receive()
        except TimeoutError:
            self._connection.close("body")
            self._is_whole = True  # what still arrives must not be counted as late again
            return await self._receive()  # the message that it is closed
        self._seconds_left += len(message.get("body", b"")) / LEAST_RATE - (loop.time() - began)
        self._is_whole = not message.get("more_body", False)
        return message


# Heads of requests: bounded, because the parser holds headers until they end, and read as those of
# plain HTTP/1 requests, whatever they request.

MOST_HEAD_BYTES: Final = 1 << 20
"""The default for the most bytes of a request line and its headers, and again of its trailers;
model servers accept 8 to 64 KiB."""

_INVALID: Final = "Invalid HTTP request received."


class BoundedHeads(HttpToolsProtocol):
    """A connection that is counted, and closed if it takes too long, or its head or trailers do not
    end.

    Between requests it may be idle for a time, and then the head of the next one has a time limit.
    While a request is answered the connection may be silent; but the caller has to read what is
    written, and a body has to arrive.

    A request to change the protocol is answered in this one, as RFC 9110 (section 7.8) permits: the
    parser would take its body for the other protocol's bytes.
    """

    _requests = 0
    _timer: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    _bytes_of_head = 0
    """Bytes since a body's last bytes, or a request's end: of a head, trailers, extensions of
    chunks."""
    _bytes_of_fields = 0
    """Bytes of the head or the trailers that were read: a piece may end them and go on."""
    _in_head = True
    _plain_head: bytes | None = None
    """The head of a request for another protocol, without that request."""

    def __init__(
        self,
        *arguments: Any,
        connections: Connections,
        limits: Limits,
        address: str,
        most_head_bytes: int = MOST_HEAD_BYTES,
        **options: Any,
    ) -> None:
        """`connections` have already counted it, from this address."""
        super().__init__(*arguments, **options)
        self.limits, self.timeout_keep_alive = limits, limits.idle  # type: ignore[assignment]
        self._counted = connections
        self._address = address
        self._most_head_bytes = most_head_bytes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect(self.limits.head)

    def pause_writing(self) -> None:
        self._stalled = self.loop.call_later(self.limits.write, self.close, "write")
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._stalled, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        self._counted.release(self._address)
        super().connection_lost(exc)

    def close(self, late: Late) -> None:
        """Close at once, whatever is still to be written; `late`: what took too long."""
        CONNECTIONS_LATE.labels(self._counted.port, late).inc()
        self.transport.abort()

    def _expect(self, seconds: float | None) -> None:
        """Close after `seconds` without a change; None: wait."""
        if self._timer is not None:
            self._timer.cancel()
        if seconds is not None and not self._requests:
            self._timer = self.loop.call_later(seconds, self.close, "head")

    def timeout_keep_alive_handler(self) -> None:
        self.close("idle")

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self._expect(self.limits.head)
        self._bytes_of_head += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except HttpParserError:
            self._refuse()
        # only now: most of a piece may have been a body
        if self._bytes_of_head > self._most_head_bytes:
            self.transport.close()

    def _refuse(self) -> None:
        self.logger.warning(_INVALID)
        if self.transport.is_closing():
            return
        if self.cycle and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # within an answer, the caller would read it as a part of it
        else:
            self.send_400_response(_INVALID)

    def _parse(self, data: memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._parse_plain_head()

    def _parse_plain_head(self) -> None:
        """Parse the head again: its body follows, then the next request."""
        head, self._plain_head = self._plain_head, None
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.parser.feed_data(head or b"")

    def on_message_begin(self) -> None:
        self._in_head, self._bytes_of_fields = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_field(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_field(len(name) + len(value))
        if self._in_head:  # a trailer is not a header: it was not checked as one
            super().on_header(name, value)

    def _count_field(self, size: int) -> None:
        """Raise ValueError, and close the connection, if the head or the trailers are too large."""
        self._bytes_of_fields += size
        if self._bytes_of_fields > self._most_head_bytes:
            self.transport.close()
            raise ValueError("the head or the trailers are too large")

    def on_headers_complete(self) -> None:
        self._in_head, self._bytes_of_head, self._bytes_of_fields = False, 0, 0
        self._check_host()
        self._check_coding()
        if self.parser.should_upgrade():
            self._plain_head = self._without_upgrade()
            return
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False  # it would take it for the answer
        super().on_headers_complete()

    def _check_host(self) -> None:
        """Raise ValueError if the request does not name its host exactly once (RFC 9112, section
        3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request of HTTP/1.1 has one Host")

    def _check_coding(self) -> None:
        """Raise ValueError if the body does not end as RFC 9112 (section 6.1) requires, or has a
        transfer coding, which would be lost on the way."""
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or self.parser.get_http_version() == "1.0"):
            raise ValueError("Transfer-Encoding is not that of chunks alone")

    def _without_upgrade(self) -> bytes:
        """Return the head without the request for another protocol. Raises ValueError for CONNECT,
        which only requests another protocol."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise ValueError("CONNECT is for tunnels")
        lines = [method + b" " + self.url + f" HTTP/{self.parser.get_http_version()}".encode()]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        self._bytes_of_head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_of_head = 0
        if self._plain_head is None:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        whole = framed(app, cycle)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._requests += 1
            self._expect(None)
            try:
                await whole(scope, _Body(receive, self, cycle), send)
            finally:
                self._requests -= 1

        super()._start_asgi_task(cycle, answer)  # type: ignore[arg-type]


# Ends an answer correctly in the two cases where uvicorn deviates from HTTP (RFC 9112, section
# 6.3): for a client of HTTP/1.0, and if there is a length but no body.

# Their Content-Length is that of an answer with a body.
_BODILESS: Final = frozenset({204, 304})
_AT_ONCE: Final = struct.pack("ii", 1, 0)


def _has_length(message: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message["headers"])


def framed(app: Any, cycle: Any) -> Any:
    """Return an application of ASGI whose answers end as HTTP requires."""

    async def answer(scope: Scope, receive: Receive, _: object) -> None:
        ends_with_connection = False

        async def send(message: Message) -> None:
            nonlocal ends_with_connection
            if message["type"] == "http.response.start":
                # HTTP/1.0 has no chunks
                if scope["http_version"] == "1.0" and not _has_length(message):
                    ends_with_connection, cycle.chunked_encoding = True, False
            elif ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            await cycle.send(message)
            if message.get("status") in _BODILESS:
                cycle.expected_content_length = 0

        try:
            await app(scope, receive, send)
        except BaseException:  # whatever broke it off
            connection = cycle.transport.get_extra_info("socket")
            if ends_with_connection and connection:
                # its regular end would mark a broken answer as complete: it is reset, not ended
                connection.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
                cycle.transport.abort()
            raise

    return answer
