"""One REST call through the proxy: a raw ASGI application.

Order: reserve a capture's memory, forward the request as it comes, forward the answer as it comes,
and only then hand the exchange over. Whatever capture does, the caller has its answer.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
import orjson
import structlog
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage, StreamWriter

from inference_store.platform import traces
from inference_store.platform.serving import Connections, Receive, Scope, Send, build_limits, listen
from inference_store.platform.settings import ProxySettings
from inference_store.platform.uvicorn_server import GuardedServer, build_config
from inference_store.proxy.capture import Captures, Reservation, head_size, id_for_answer
from inference_store.proxy.event_intake import EventIntake
from inference_store.proxy.exchange import CapturedBody, Exchange
from inference_store.proxy.rest_messages import (
    CONNECTION,
    ForwardedHeads,
    Raw,
    Stripping,
    Upstream,
    as_raw,
    as_text,
    encode_head,
    end_to_end,
    read_length,
)
from inference_store.proxy.routing import TRACE_HEADERS, ObservedCall, Outcome, Route, Routing

CALLER_GONE: Final = "the caller went away before it had the answer"
_Body = bytes | AsyncIterator[bytes]
_UPSTREAM_ERRORS: Final = (aiohttp.ClientError, OSError)
_LONGEST: Final = 300
_UNWRITABLE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")
_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
# RFC 9110, section 9.2.2: sent again if the connection was lost, which may have been idle for long.
_REPEATED: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
_CONTEXT: Final = frozenset(name.encode() for name in TRACE_HEADERS)
_BACKLOG: Final = 2048
_log = structlog.get_logger()


class _Unwritable(aiohttp.ClientError):
    """The upstream's answer cannot be passed on; `str()` of the error names what is wrong."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The application."""

    routing: Routing
    upstreams: Mapping[str, Upstream]
    captures: Captures
    stripping: Stripping
    intake: EventIntake | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.intake and (logger := self.intake.find(scope["raw_path"])):
            await self.intake.take(logger, scope, receive, send)
            return
        exchange = Exchange(
            transport="rest",
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            received_at=datetime.now(UTC),
        )
        route = self.routing.route("rest", exchange.method, exchange.path)
        if route.call and self.captures.queue.is_needed:
            await self.captures.queue.wait(read_length(scope["headers"]) or 0)
        call = ForwardedCall(self, scope, receive, send, exchange=exchange, route=route)
        await call.run()


class ForwardedCall:
    """One call. Capture cannot fail it."""

    def __init__(
        self,
        app: Forwarding,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        exchange: Exchange,
        route: Route,
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._caller, self._has_query = scope["extensions"][CONNECTION]
        self._route, self._exchange = route, exchange
        self._upstream: Upstream | None = app.upstreams.get(route.upstream.name)
        self._headers: Raw = end_to_end(scope["headers"])
        self._reservation: Reservation | None = None
        length = read_length(self._headers) or 0
        if route.call:
            exchange.request_headers = as_text(self._headers)
            head = len(exchange.path) + len(exchange.query) + head_size(exchange.request_headers)
            self._reservation = app.captures.begin(length, head)
        self._captured_request = CapturedBody(exchange.request, self._reservation, length)
        self._captured_answer = CapturedBody(exchange.response, self._reservation)
        self._stripping, self._held = app.stripping, 0
        self._has_whole_request = self._answer_began = False
        self._has_whole_answer = True
        task: Any = asyncio.current_task()
        self._task: asyncio.Task[None] = task
        self._connection: Connection | None = None
        self._writing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Forward the call; return after the answer, or when the caller has gone."""
        exchange = self._exchange
        observed = ObservedCall("rest", self._route, self._describe)
        try:
            with traces.within(observed.span):
                await self._forward()
        except asyncio.CancelledError:
            if exchange.error != CALLER_GONE or self._task.uncancel():
                raise  # another task cancelled this one
        finally:
            self._stop_watching()
            self._leave_upstream(is_reusable=False)
            self._stripping.free += self._held
            exchange.request.whole &= self._has_whole_request
            exchange.response.whole &= self._has_whole_answer
            exchange.finished_at = datetime.now(UTC)
            observed.end(classify(exchange), exchange.http_status)
            if self._reservation is not None:
                self._reservation.finish(exchange, self._route)

    def _lose_caller(self) -> None:
        self._exchange.error = CALLER_GONE
        self._task.cancel()

    def _stop_watching(self) -> None:
        if self._caller.on_lost == self._lose_caller:  # not that of the next call
            self._caller.on_lost = None

    def _leave_upstream(self, *, is_reusable: bool) -> None:
        """Give the connection back, or close one whose answer or request is not complete."""
        is_written = self._writing is None or self._writing.done()
        if self._writing is not None:
            self._writing.cancel()
        if self._connection is not None:
            (self._connection.release if is_reusable and is_written else self._connection.close)()
        self._connection = self._writing = None

    async def _forward(self) -> None:
        """Forward the request and the answer. After an error the proxy answers itself or, if the
        answer had begun, breaks the connection off."""
        try:
            await self._send_request(await self._read_body())
        except _UPSTREAM_ERRORS as error:
            if self._exchange.error == CALLER_GONE:
                return
            status, sentence = describe_failure(self._route.upstream.name, error)
            self._exchange.error = sentence
            _log.warning("upstream failed", action="upstream_failed", error=sentence)
            if self._answer_began:  # the server logs the error: it must not quote the answer
                raise ConnectionAbortedError(sentence) from None
            await self._refuse(status, sentence)

    async def _read_part(self) -> bytes:
        """Return the next part of the request. Raises ConnectionAbortedError if the caller has
        gone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._exchange.error = CALLER_GONE
            raise ConnectionAbortedError(CALLER_GONE)
        part: bytes = message["body"]
        if part:
            self._captured_request.add(part)
        if not message["more_body"]:
            self._has_whole_request = True
            self._caller.on_lost = self._lose_caller
        return part

    async def _read_rest(self, *first: bytes) -> AsyncIterator[bytes]:
        for part in filter(None, first):
            yield part
        while not self._has_whole_request:
            if part := await self._read_part():
                yield part

    async def _read_body(self) -> _Body:
        """Return the body to forward: whole if it came at once or metadata were removed, else its
        parts as they come."""
        parts = [await self._read_part()]
        call = self._route.call
        strip = call.protocol.strip if call and self._route.rules.strip_metadata else None
        if strip is None:
            return parts[0] if self._has_whole_request else self._read_rest(*parts)
        while self._stripping.take(self._held, len(parts[-1])):
            self._held += len(parts[-1])
            if self._has_whole_request:
                break
            parts.append(await self._read_part())
        else:
            return self._read_rest(*parts)
        body = b"".join(parts)
        parts.clear()  # otherwise memory holds it twice
        stripped = await self._stripping.strip(strip, body, self._exchange.request_headers)
        if stripped is not None:
            body, self._headers = stripped[0], as_raw(stripped[1])
        return body

    async def _send_request(self, body: _Body) -> None:
        exchange, upstream = self._exchange, self._upstream
        if upstream is None:
            sentence = f"the upstream {self._route.upstream.name} does not answer REST"
            await self._refuse(502, sentence)
            return
        if not exchange.path.startswith("/"):
            target = exchange.path[:80]
            sentence = f"the request's target {target!r} is not a path: it must begin with /"
            await self._refuse(400, sentence)
            return
        exchange.forwarded_at = datetime.now(UTC)
        is_repeated = exchange.method in _REPEATED and isinstance(body, bytes)
        try:
            message, content = await self._ask(upstream, body)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            if not is_repeated or isinstance(error, aiohttp.ClientConnectorError):
                raise
            self._leave_upstream(is_reusable=False)
            message, content = await self._ask(upstream, body)
        exchange.responded_at = datetime.now(UTC)
        await self._send_answer(message, content)

    async def _ask(
        self, upstream: Upstream, body: _Body
    ) -> tuple[RawResponseMessage, StreamReader]:
        method, scope = self._exchange.method, self._scope
        target: bytes = upstream.path + scope["raw_path"]
        if scope["query_string"] or self._has_query:
            target += b"?" + scope["query_string"]
        head, is_chunked = encode_head(method, target, self._headers, body, upstream.host)
        self._connection, protocol, transport = await upstream.connect(method)
        if isinstance(body, bytes):
            transport.writelines((head, body))  # a large one is not copied
            protocol.start_timeout()
        else:
            transport.write(head)
            writing = _write_parts(protocol, body, is_chunked=is_chunked)
            self._writing = asyncio.create_task(writing)
        return await upstream.read_head(protocol)

    async def _send_answer(self, message: RawResponseMessage, content: StreamReader) -> None:
        exchange = self._exchange
        headers = end_to_end(message.raw_headers)
        if not 200 <= message.code <= 599:  # the HTTP server writes no other
            raise _Unwritable(f"the status {message.code}, which is none of HTTP's for an answer")
        if _UNWRITABLE.search(b"".join(value for _, value in headers)):
            raise _Unwritable("control characters in a header")
        exchange.http_status = message.code
        if self._reservation is not None:
            name, value = id_for_answer(exchange.request_headers)
            headers.append((name.encode(), value.encode("latin-1")))
            exchange.response_headers = as_text(headers)
        self._answer_began, self._has_whole_answer = True, False
        start = {"type": "http.response.start", "status": message.code, "headers": headers}
        with self._caller.corked() if content.is_eof() else nullcontext():
            await self._send(start)
            while True:
                part = await content.readany()
                if part:
                    exchange.first_part_at = exchange.first_part_at or datetime.now(UTC)
                    self._captured_answer.add(part)
                if content.at_eof():
                    break
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
            self._leave_upstream(is_reusable=True)
            await self._finish(part)

    async def _finish(self, body: bytes) -> None:
        """Send the end of the answer. From now on a disconnect only means that the call is over."""
        self._stop_watching()
        self._has_whole_answer = True
        await self._send({"type": "http.response.body", "body": body})

    async def _refuse(self, status: int, sentence: str) -> None:
        body = orjson.dumps({"error": sentence})  # as the Open Inference Protocol has it
        self._exchange.error = self._exchange.error or sentence
        self._answer_began = True
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._finish(body)

    def _describe(self) -> tuple[traces.Attributes, Mapping[str, str]]:
        method = self._exchange.method
        attributes = {
            "http.request.method": method if method in _METHODS else "_OTHER",
            "url.scheme": self._scope["scheme"],
            "network.protocol.version": self._scope["http_version"],
        }
        pairs = ((name, value) for name, value in self._headers if name in _CONTEXT)
        return attributes, {name.decode(): value.decode("latin-1") for name, value in pairs}


async def _write_parts(
    protocol: ResponseHandler, parts: AsyncIterator[bytes], *, is_chunked: bool
) -> None:
    """Write a request's body as it comes. If it breaks off, reading the answer fails."""
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    if is_chunked:
        writer.enable_chunking()
    try:
        async for part in parts:
            await writer.write(part)
        await writer.write_eof()
        protocol.start_timeout()
    except OSError as error:
        protocol.set_exception(aiohttp.ClientOSError(error.errno, "the request's body broke off"))


def describe_failure(upstream: str, error: BaseException) -> tuple[int, str]:
    """Return the status and the sentence for an error on the way to an upstream."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return 504, f"the upstream {upstream} did not accept a connection in time"
    if isinstance(error, aiohttp.ServerTimeoutError | TimeoutError):
        return 504, f"the upstream {upstream} did not answer in time"
    if isinstance(error, _Unwritable):
        return 502, f"the upstream {upstream} answered with {error}"
    # the text of the system or of TLS; a parser's error quotes the answer
    text = f": {str(error)[:_LONGEST]}" if isinstance(error, OSError) else ""
    return 502, f"the upstream {upstream} cannot be reached: {type(error).__name__}{text}"


def classify(exchange: Exchange) -> Outcome:
    if exchange.error == CALLER_GONE:
        return "gone"
    if exchange.forwarded_at is None:
        return "refused"
    status = exchange.http_status
    if status is None or status >= 500 or exchange.error is not None:
        return "failed"
    return "refused" if status >= 400 else "ok"


def build_server(
    app: Forwarding, settings: ProxySettings, connections: Connections, *, grace_seconds: float
) -> GuardedServer:
    """Return the server of one application; its calls have `grace_seconds` to end when it stops.
    Raises PortTaken."""
    sockets = listen(settings.proxy_host, settings.proxy_port, setting="PROXY", backlog=_BACKLOG)
    limits = build_limits(settings)
    files = settings.proxy_tls_certificate_file, settings.proxy_tls_key_file
    grace = max(1, round(grace_seconds))
    own: dict[str, Any] = {"http": ForwardedHeads, "lifespan": "off", "date_header": False}
    config = build_config(app, files, grace_seconds=grace, **own)
    return GuardedServer(config, sockets, connections, limits)
