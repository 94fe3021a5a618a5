"""uvicorn on counted connections with limits."""

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Any, Final

import structlog
import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .serving import Connections, Limits, Listener, Message, Receive, Scope
from .settings import presenting

_log = structlog.get_logger()


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
        self._listening: Listener | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Start serving; uvicorn itself does not listen."""
        await super().startup(sockets or [])
        loop = asyncio.get_running_loop()
        # uvicorn's own would never read renewed files
        certificate, key = self.config.ssl_certfile, self.config.ssl_keyfile
        tls = presenting(Path(certificate), Path(key)) if certificate and key else None
        make: Any = self.config.http_protocol_class

        def protocol() -> asyncio.Protocol:
            connection_protocol: asyncio.Protocol = make(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )
            return connection_protocol

        self._listening = Listener(
            self._own_sockets, protocol, self._connections, self._limits, tls
        )
        for listening in self._own_sockets:
            host, port = listening.getsockname()[:2]
            action = f"{self._connections.port}_listening"
            _log.info(f"{self._connections.port} open", action=action, host=host, port=port)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Take no more connections, and let the open ones end."""
        if self._listening is not None:
            await self._listening.stop()
        await super().shutdown(sockets)


# Heads of requests: bounded, because the parser holds headers until they end, and read as those of
# plain HTTP/1 requests, whatever they request.

MOST_HEAD_BYTES: Final = 1 << 20
"""The default for the most bytes of a request line and its headers, and again of its trailers;
model servers accept 8 to 64 KiB."""

_INVALID: Final = "Invalid HTTP request received."


class BoundedHeads(HttpToolsProtocol):
    """Closes a connection whose head or trailers do not end. A request to change the protocol is
    answered in this one, as RFC 9110 (section 7.8) permits: the parser would take its body for the
    other protocol's bytes."""

    _bytes_of_head = 0
    """Bytes since a body's last bytes, or a request's end: of a head, trailers, extensions of
    chunks."""
    _bytes_of_fields = 0
    """Bytes of the head or the trailers that were read: a piece may end them and go on."""
    _in_head = True
    _plain_head: bytes | None = None
    """The head of a request for another protocol, without that request."""

    def __init__(
        self, *arguments: Any, most_head_bytes: int = MOST_HEAD_BYTES, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._most_head_bytes = most_head_bytes

    def data_received(self, data: bytes) -> None:
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
        self._count_field(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_field(name, value)
        if self._in_head:  # a trailer is not a header: it was not checked as one
            super().on_header(name, value)

    def _count_field(self, *parts: bytes) -> None:
        """Raise ValueError, and close the connection, if the head or the trailers are too large."""
        self._bytes_of_fields += sum(map(len, parts))
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
        super()._start_asgi_task(cycle, framed(app, cycle))


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
