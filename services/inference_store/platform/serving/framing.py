"""Ends an answer correctly in the two cases where uvicorn deviates from HTTP (RFC 9112, section
6.3): for a client of HTTP/1.0, and if there is a length but no body."""

import struct
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .request_bodies import Message, Receive, Scope

# Their Content-Length is that of an answer with a body.
_BODILESS: Final = frozenset({204, 304})
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Framing:
    """Sends one answer."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: Any = cycle
        self._until_closed = False

    async def send(self, message: Message) -> None:
        """Send one message of ASGI."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._until_closed = _has_no_chunks(cycle.scope) and not _has_length(message)
            if self._until_closed:
                cycle.chunked_encoding = False  # the answer ends with the connection
            await cycle.send(message)
            if message["status"] in _BODILESS:
                cycle.expected_content_length = 0
            return
        if self._until_closed:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)

    def break_off(self) -> None:
        """Reset the connection if its regular end would mark a broken answer as complete."""
        transport = self._cycle.transport
        if self._until_closed and (connection := transport.get_extra_info("socket")):
            connection.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)  # it is reset, not ended
            transport.abort()


def framed(app: Any, cycle: RequestResponseCycle) -> Any:
    """Return an application of ASGI whose answers end as HTTP requires."""

    async def answer(scope: Scope, receive: Receive, _: object) -> None:
        framing = Framing(cycle)
        try:
            await app(scope, receive, framing.send)
        except BaseException:  # whatever broke it off
            framing.break_off()
            raise

    return answer


def _has_no_chunks(scope: Scope) -> bool:
    return bool(scope["http_version"] == "1.0")


def _has_length(message: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message["headers"])
