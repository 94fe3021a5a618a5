"""One REST call through the proxy: a raw ASGI application.

Order: reserve a capture's memory, forward the request as it comes, forward the answer as it comes,
and only then hand the exchange over. Whatever capture does, the caller has its answer.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from socket import socket
from typing import Any, Final

import orjson
import structlog
import uvicorn
from aiohttp import (
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ConnectionTimeoutError,
    ServerTimeoutError,
)
from yarl import URL

from inference_store.platform import traces
from inference_store.platform.serving import Connections, Limits, build_limits, listen
from inference_store.platform.settings import ProxySettings
from inference_store.platform.uvicorn_server import GuardedServer, build_config
from inference_store.proxy.capture import Reservation, head_size, id_for_answer
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.protocol import Strip
from inference_store.proxy.rest_messages import (
    EMPTY_QUERY,
    CapturedBody,
    ForwardedHeads,
    HeldRequest,
    Raw,
    Receive,
    Scope,
    Send,
    Stripping,
    Upstreams,
    as_raw,
    as_text,
    end_to_end,
    read_length,
    to_upstream,
)
from inference_store.proxy.routing import (
    TRACE_HEADERS,
    ObservedCall,
    Outcome,
    Route,
    Routing,
)

# One call on its way to the upstream and back.

CALLER_GONE: Final = "the caller went away before it had the answer"
_LARGE: Final = 1 << 20
_log = structlog.get_logger()


class ForwardedCall:
    """One call. Capture cannot fail it."""

    def __init__(
        self,
        route: Route,
        session: ClientSession | None,
        exchange: Exchange,
        *,
        reservation: Reservation | None,
        stripping: Stripping,
        receive: Receive,
        send: Send,
    ) -> None:
        self._upstream = route.upstream
        is_stripped = route.call is not None and route.rules.strip_metadata
        self._strip = route.call.protocol.strip if route.call and is_stripped else None
        self._held = HeldRequest(stripping)
        self._session = session
        self._exchange = exchange
        self._reservation = reservation
        self._receive = receive
        self._send = send
        self._has_whole_request = False
        self._leaving: asyncio.Future[None] | None = None
        # the task that answers, as long as it is to be cancelled if the caller leaves
        self._task: asyncio.Task[None] | None = None
        self._answer_began = False
        self._has_whole_answer = True
        self.has_empty_query = False
        """True if the request's target ends with a question mark."""

    async def run(self, headers: Raw) -> None:
        """Forward the call; return after the answer, or when the caller has gone."""
        reserved = read_length(headers) or 0
        self._captured_request = CapturedBody(self._exchange.request, self._reservation, reserved)
        self._captured_answer = CapturedBody(self._exchange.response, self._reservation)
        self._task = asyncio.current_task()
        try:
            await self._forward(headers)
        except asyncio.CancelledError:
            if self._exchange.error != CALLER_GONE or self._task is None or self._task.uncancel():
                raise  # another task cancelled this one
        finally:
            self._task = None
            if self._leaving is not None:
                self._leaving.cancel()
            self._held.release()
            self._exchange.request.whole &= self._has_whole_request
            self._exchange.response.whole &= self._has_whole_answer

    async def _watch_caller(self) -> None:
        """Cancel the call if the caller leaves, which is all that can come after the request."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._exchange.error = CALLER_GONE
            self._task.cancel()

    async def _forward(self, headers: Raw) -> None:
        """Forward the request and the answer. After an error the proxy answers itself or, if the
        answer had begun, breaks the connection off."""
        try:
            first = await self._read_part()
            if self._strip is None:
                body = self._read_rest(first) if not self._has_whole_request else first
            else:
                headers, body = await self._strip_metadata(self._strip, headers, first)
            await self._send_request(headers, body)
        except (ValueError, *UPSTREAM_ERRORS) as error:
            await self._handle_error(error)

    async def _handle_error(self, error: Exception) -> None:
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            # its address or a header cannot be written; a certificate's error is both
            if self._answer_began:
                raise error
            await self._refuse(400, f"the request cannot be passed on: {str(error)[:_LONGEST]}")
            return
        if self._exchange.error == CALLER_GONE:
            return
        status, sentence = describe_failure(self._upstream.name, error)
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
        part: bytes = message.get("body", b"")
        self._captured_request.add(part)
        if not message.get("more_body", False):
            self._has_whole_request = True
            self._leaving = asyncio.ensure_future(self._watch_caller())
        return part

    async def _read_rest(self, *first: bytes) -> AsyncIterator[bytes]:
        for part in filter(None, first):
            yield part
        while not self._has_whole_request:
            part = await self._read_part()
            if part:
                yield part

    async def _strip_metadata(
        self, strip: Strip, headers: Raw, first: bytes
    ) -> tuple[Raw, bytes | AsyncIterator[bytes]]:
        fits = self._held.add(first)
        while fits and not self._has_whole_request:
            fits = self._held.add(await self._read_part())
        if not fits:
            return headers, self._read_rest(*self._held.parts)
        body, changed = await self._held.strip_metadata(strip, self._exchange.request_headers)
        return (headers if changed is None else as_raw(changed)), body

    async def _send_request(self, headers: Raw, body: bytes | AsyncIterator[bytes]) -> None:
        exchange = self._exchange
        if self._session is None:
            await self._refuse(502, f"the upstream {self._upstream.name} answers gRPC alone")
            return
        if not exchange.path.startswith("/"):
            # After an address, anything but a path could lead to another host: `*@elsewhere` would.
            target = exchange.path[:80]
            sentence = f"the request's target {target!r} is not a path: it must begin with /"
            await self._refuse(400, sentence)
            return
        if isinstance(body, bytes) and len(body) > _LARGE:
            data: Any = BytesIO(body)  # bytes would be written all at once
        else:
            data = body or None
        exchange.forwarded_at = datetime.now(UTC)
        async with self._session.request(
            exchange.method,
            self._url(),
            headers=to_upstream(headers),
            data=data,
            allow_redirects=False,
        ) as answer:
            exchange.responded_at = datetime.now(UTC)
            with fail_with_connection(answer):
                await self._send_answer(answer)

    def _url(self) -> URL:
        exchange = self._exchange
        query = f"?{exchange.query}" if exchange.query else ""
        url = URL(f"{self._upstream.url}{exchange.path}{query}", encoded=True)
        if not self.has_empty_query or query:
            return url
        # yarl would omit a lone question mark: here it belongs to the path
        path = f"{url.raw_path}?"
        return URL.build(scheme=url.scheme, authority=url.raw_authority, path=path, encoded=True)

    async def _send_answer(self, answer: ClientResponse) -> None:
        headers = end_to_end(answer.raw_headers)
        if (why := find_answer_error(answer.status, headers)) is not None:
            sentence = f"the upstream {self._upstream.name} {why}"
            _log.warning("upstream failed", action="upstream_failed", error=sentence)
            await self._refuse(502, sentence)
            return
        self._exchange.http_status = answer.status
        if self._reservation is not None:
            name, value = id_for_answer(self._exchange.request_headers)
            headers.append((name.encode(), value.encode("latin-1")))
            self._exchange.response_headers = as_text(headers)
        self._answer_began, self._has_whole_answer = True, False
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await self._send(start)
        bytes_left = read_length(headers)
        async for part in answer.content.iter_any():
            self._exchange.first_part_at = self._exchange.first_part_at or datetime.now(UTC)
            self._captured_answer.add(part)
            bytes_left = None if bytes_left is None else bytes_left - len(part)
            if bytes_left == 0:
                await self._finish(part)
            else:
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        if self._task is not None:
            await self._finish(b"")

    async def _finish(self, body: bytes) -> None:
        """Send the end of the answer. From now on a disconnect only means that the call is over."""
        self._task, self._has_whole_answer = None, True
        await self._send({"type": "http.response.body", "body": body})

    async def _refuse(self, status: int, sentence: str) -> None:
        body = orjson.dumps({"error": sentence})  # as the Open Inference Protocol has it
        self._exchange.error = self._exchange.error or sentence
        self._answer_began = True
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._finish(body)


# Ends an answer whose connection is lost: the HTTP client closes a connection whose framing breaks
# within an answer, but lets its reader wait forever.


@contextmanager
def fail_with_connection(answer: ClientResponse) -> Iterator[None]:
    """Let reading raise ClientPayloadError if the connection is lost before the answer's end."""

    def end(_: object = None) -> None:
        if not answer.content.is_eof() and answer.content.exception() is None:
            answer.content.set_exception(ClientPayloadError("broke off"))

    protocol = answer.connection and answer.connection.protocol
    if protocol is None:  # the answer is complete
        yield
    elif (closed := protocol.closed) is None:  # the connection is lost
        end()
        yield
    else:
        closed.remove_done_callback(
            _consume_error
        )  # at most one, however many answers come over it
        closed.add_done_callback(_consume_error)
        closed.add_done_callback(end)
        try:
            yield
        finally:
            closed.remove_done_callback(end)


def _consume_error(closed: "asyncio.Future[None]") -> None:
    """Retrieve the error of an idle connection that was lost: unretrieved, it would be logged."""
    if not closed.cancelled():
        closed.exception()


UPSTREAM_ERRORS: Final = (ClientError, OSError, asyncio.TimeoutError)
_LONGEST: Final = 300
_UNWRITABLE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")


def find_answer_error(status: int, headers: Raw) -> str | None:
    """Return why an upstream's answer cannot be forwarded; None if it can. The HTTP server writes
    only HTTP's statuses, and no caller requested a change of protocol."""
    if not 200 <= status <= 599:
        return f"answered with the status {status}, which is none of HTTP's for an answer"
    if _UNWRITABLE.search(b"".join(value for _, value in headers)):
        return "answered with control characters in a header"
    return None


def describe_failure(upstream: str, error: BaseException) -> tuple[int, str]:
    """Return the status and the sentence for an error on the way to an upstream."""
    if isinstance(error, ConnectionTimeoutError):
        return 504, f"the upstream {upstream} did not accept a connection in time"
    if isinstance(error, ServerTimeoutError | asyncio.TimeoutError):
        return 504, f"the upstream {upstream} did not answer in time"
    # the text of the system or of TLS; a parser's error quotes the answer
    text = f": {str(error)[:_LONGEST]}" if isinstance(error, OSError) else ""
    return 502, f"the upstream {upstream} cannot be reached: {type(error).__name__}{text}"


class Forwarding:
    """The application."""

    def __init__(
        self,
        routing: Routing,
        upstreams: Upstreams,
        begin: Callable[[int, int], Reservation | None],
        stripping: Stripping,
    ) -> None:
        """`begin` makes a reservation for the sizes of a body and a head; None if there is no
        memory."""
        self._routing = routing
        self._upstreams = upstreams
        self._begin = begin
        self._stripping = stripping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["raw_path"].decode("latin-1")
        route = self._routing.route("rest", method, path)
        headers = end_to_end(scope["headers"])
        exchange = Exchange(
            transport="rest",
            method=method,
            path=path,
            query=scope["query_string"].decode("latin-1"),
            request_headers=as_text(headers) if route.call else (),
            received_at=datetime.now(UTC),
        )
        reservation = None
        if route.call:
            target = len(exchange.path) + len(exchange.query)
            head = target + head_size(exchange.request_headers)
            reservation = self._begin(read_length(headers) or 0, head)
        forwarded = ForwardedCall(
            route,
            self._upstreams.session(route.upstream.name),
            exchange,
            reservation=reservation,
            stripping=self._stripping,
            receive=receive,
            send=send,
        )
        forwarded.has_empty_query = EMPTY_QUERY in scope.get("extensions", ())
        observed = ObservedCall("rest", route, lambda: describe(scope, headers))
        try:
            with traces.within(observed.span):
                await forwarded.run(headers)
        finally:
            exchange.finished_at = datetime.now(UTC)
            observed.end(classify(exchange), exchange.http_status)
            if reservation is not None:
                reservation.finish(exchange, route)


_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_CONTEXT: Final = frozenset(name.encode() for name in TRACE_HEADERS)


def describe(scope: Scope, headers: Raw) -> tuple[traces.Attributes, Mapping[str, str]]:
    """Return a span's attributes, and the caller's context."""
    attributes = {
        "http.request.method": scope["method"] if scope["method"] in _METHODS else "_OTHER",
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }
    context = {
        name.decode(): value.decode("latin-1") for name, value in headers if name in _CONTEXT
    }
    return attributes, context


def classify(exchange: Exchange) -> Outcome:
    """Return the outcome of a call that is over."""
    if exchange.error == CALLER_GONE:
        return "gone"
    if exchange.forwarded_at is None:
        return "refused"
    status = exchange.http_status
    if status is None or status >= 500 or exchange.error is not None:
        return "failed"
    return "refused" if status >= 400 else "ok"


_BACKLOG: Final = 2048


class Server(GuardedServer):
    """A server that reports when it listens, and stops when `should_exit` is set."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[socket],
        connections: Connections,
        limits: Limits,
    ) -> None:
        super().__init__(config, sockets, connections, limits)
        self.port: int = sockets[0].getsockname()[1]
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def build_server(
    app: Forwarding, settings: ProxySettings, connections: Connections, *, grace_seconds: float
) -> Server:
    """Return the server of one application; its calls have `grace_seconds` to end when it stops.
    Raises PortTaken."""
    sockets = listen(settings.proxy_host, settings.proxy_port, setting="PROXY", backlog=_BACKLOG)
    limits = build_limits(settings)
    files = settings.proxy_tls_certificate_file, settings.proxy_tls_key_file
    grace = max(1, round(grace_seconds))
    own: dict[str, Any] = {"http": ForwardedHeads, "lifespan": "off", "date_header": False}
    config = build_config(app, files, limits, grace_seconds=grace, **own)
    return Server(config, sockets, connections, limits)
