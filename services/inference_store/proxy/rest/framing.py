"""Where an answer ends, in the two cases in which uvicorn has it otherwise than HTTP (RFC 9112,
section 6.3): to a client of HTTP/1.0, and where there is a length but no body."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from .asgi import Message, Receive, Scope

# Their Content-Length is that of an answer with a body.
_BODILESS: Final = frozenset({204, 304})


class Framing:
    """Sends one answer."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: Any = cycle
        self._until_closed = False

    async def send(self, message: Message) -> None:
        """One message of ASGI."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._until_closed = _has_no_chunks(cycle.scope) and not _has_length(message)
            if self._until_closed:
                cycle.chunked_encoding = False  # the connection's end, which follows, is its end
            await cycle.send(message)
            if message["status"] in _BODILESS:
                cycle.expected_content_length = 0
            return
        if self._until_closed:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)


def framed(app: Any, cycle: RequestResponseCycle) -> Any:
    """The application of ASGI, whose answer ends where HTTP says."""

    async def answer(scope: Scope, receive: Receive, _: object) -> None:
        await app(scope, receive, Framing(cycle).send)

    return answer


def _has_no_chunks(scope: Scope) -> bool:
    return bool(scope["http_version"] == "1.0")


def _has_length(message: Message) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message["headers"])
