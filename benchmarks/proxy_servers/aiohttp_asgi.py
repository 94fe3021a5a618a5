"""ASGI on aiohttp's server, with what its public hooks allow: the proxy's connections and limits,
the request's bytes, and half-closed callers."""

import asyncio
import struct
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final

from aiohttp import web

from inference_store.platform.serving.request_bodies import App, Message
from inference_store.proxy.rest.messages import EMPTY_QUERY

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_AT_ONCE: Final = struct.pack("ii", 1, 0)
_GLANCE_SECONDS: Final = 0.02
_PROBES: Final = 3
_PROBE_SECONDS: Final = 0.3


class Connection(web.RequestHandler):
    """One connection. A caller that has stopped sending is probed, as the proxy does."""

    answering: "Answer | None" = None
    has_ended = False
    """True if the caller has stopped sending."""

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.answering is not None:
            self.answering.lost.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        self.has_ended = True
        # a request that came with it is not read yet
        asyncio.get_running_loop().call_later(_GLANCE_SECONDS, self._look_for_caller)
        return True

    def _look_for_caller(self) -> None:
        if self.answering is None or not self.answering.has_arrived:
            self.force_close()
        else:
            self._probe(_PROBES)

    def _probe(self, times: int) -> None:
        answer = self.answering
        if answer is None or answer.response is not None or self.transport is None:
            return
        self.transport.write(_CONTINUE)
        if times > 1:
            asyncio.get_running_loop().call_later(_PROBE_SECONDS, self._probe, times - 1)


class Answer:
    """One request and its answer, as messages of ASGI."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self.lost = asyncio.Event()
        self.has_whole_request = False
        self.response: web.StreamResponse | None = None
        expects = request.headers.get("Expect", "").lower() == "100-continue"
        self._expects = expects and request.version >= (1, 1)

    @property
    def has_arrived(self) -> bool:
        """Whether the request has arrived whole."""
        return self._request.content.is_eof()

    async def receive(self) -> Message:
        """Return the next part of the request, then wait until the caller has gone."""
        if self.has_whole_request:
            await self.lost.wait()
            return {"type": "http.disconnect"}
        if self._expects:
            self._expects = False
            await self._request.writer.write(_CONTINUE)
        try:
            part = await self._request.content.readany()
        except (ConnectionError, web.RequestPayloadError):
            return {"type": "http.disconnect"}
        self.has_whole_request = self._request.content.at_eof()
        return {"type": "http.request", "body": part, "more_body": not self.has_whole_request}

    async def send(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            self.response = web.StreamResponse(status=message["status"])
            if self._ends_with_connection(message):
                self.response.force_close()
            for name, value in message["headers"]:
                self.response.headers.add(name.decode("latin-1"), _decode(value))
            await self.response.prepare(self._request)
            return
        assert self.response is not None
        if message.get("body"):
            await self.response.write(message["body"])
        if not message.get("more_body"):
            await self.response.write_eof()

    def _ends_with_connection(self, start: Message) -> bool:
        connection = self._request.protocol
        if isinstance(connection, Connection) and connection.has_ended:
            return True
        has_length = any(name == b"content-length" for name, _ in start["headers"])
        return self._request.version < (1, 1) and not has_length

    def build_scope(self) -> dict[str, Any]:
        """Return the scope, as uvicorn makes it."""
        request = self._request
        path, question_mark, query = request.raw_path.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": f"{request.version.major}.{request.version.minor}",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": path.encode("latin-1", "surrogateescape"),
            "query_string": query.encode("latin-1", "surrogateescape"),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
            "extensions": {EMPTY_QUERY: {}} if question_mark and not query else {},
        }


class AsgiHandler:
    """Answers requests of aiohttp's server by an application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer; an application that fails within its answer breaks the connection off."""
        if request.method == "CONNECT":  # it is for tunnels
            refusal = web.Response(status=400)
            refusal.force_close()
            return refusal
        answer = Answer(request)
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.answering = answer
        try:
            await self._app(answer.build_scope(), answer.receive, answer.send)
        except Exception:
            if answer.response is None:
                raise
            _break_off(connection, reset=request.version < (1, 1))
        finally:
            connection.answering = None
        return answer.response or web.Response(status=500)


def _break_off(connection: Connection, *, reset: bool) -> None:
    """Close a connection; `reset`: its regular end would mark the answer as complete."""
    transport = connection.transport
    if reset and transport is not None:
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
        transport.abort()
    connection.force_close()


def _decode(value: bytes) -> str:
    """Return a header's text for aiohttp, which writes UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
