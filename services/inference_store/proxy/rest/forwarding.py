"""One REST call through the proxy: a raw ASGI application.

Order: reserve a capture's memory, forward the request as it comes, forward the answer as it comes,
and only then hand the exchange over. Whatever capture does, the caller has its answer.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from socket import socket
from typing import Final, TypeAlias

import uvicorn

from inference_store.platform import traces
from inference_store.platform.serving import Connections, Limits, Served, listen
from inference_store.platform.uvicorn_server import GuardedServer
from inference_store.proxy.capture import head_size
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.observed_call import TRACE_HEADERS, ObservedCall, Outcome, Reservation
from inference_store.proxy.routing import Routing

from .forwarded_call import CALLER_GONE, ForwardedCall
from .messages import (
    EMPTY_QUERY,
    ForwardedHeads,
    Raw,
    Receive,
    Scope,
    Send,
    Stripping,
    Upstreams,
    as_text,
    end_to_end,
    read_length,
)

Begin: TypeAlias = Callable[[int, int], Reservation | None]
"""Returns a reservation for the sizes of a body and a head; None if there is no memory."""


class Forwarding:
    """The application. `begin` makes a capture's reservation."""

    def __init__(
        self, routing: Routing, upstreams: Upstreams, begin: Begin, stripping: Stripping
    ) -> None:
        self._routing = routing
        self._upstreams = upstreams
        self._begin = begin
        self._stripping = stripping
        self.calls = 0
        """Calls in progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.calls += 1
        try:
            await self._forward(scope, receive, send)
        finally:
            self.calls -= 1

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        reservation = self._reserve(exchange, read_length(headers) or 0) if route.call else None
        session = self._upstreams.session(route.upstream.name)
        forwarded = ForwardedCall(
            route,
            session,
            exchange,
            reservation=reservation,
            stripping=self._stripping,
            receive=receive,
            send=send,
        )
        forwarded.has_empty_query = EMPTY_QUERY in scope.get("extensions", ())
        name = route.upstream.name
        observed = ObservedCall(
            "rest",
            route.call,
            name,
            lambda: describe(scope, headers),
            is_unrecognised=route.is_unrecognised,
        )
        try:
            with traces.within(observed.span):
                await forwarded.run(headers)
        finally:
            exchange.finished_at = datetime.now(UTC)
            observed.end(classify(exchange), exchange.http_status)
            if reservation is not None and route.call is not None:
                reservation.finish(exchange, route.call, route.rules, route.model)

    def _reserve(self, exchange: Exchange, size: int) -> Reservation | None:
        target = len(exchange.path) + len(exchange.query)
        return self._begin(size, target + head_size(exchange.request_headers))


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

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the caller handles signals, and stops gRPC as well

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def build_server(
    app: Forwarding,
    *,
    host: str,
    port: int,
    grace_seconds: float,
    connections: Connections,
    limits: Limits,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Server:
    """Return the server of one application; its calls have `grace_seconds` to end when it stops.
    Raises PortTaken."""
    sockets = listen(host, port, setting="PROXY", backlog=_BACKLOG)
    config = uvicorn.Config(
        Served(app),
        ssl_certfile=certificate,
        ssl_keyfile=key,
        http=ForwardedHeads,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.idle),
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
    )
    return Server(config, sockets, connections, limits)
