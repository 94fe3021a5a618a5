"""One REST call through the proxy: a raw ASGI application.

Order: a capture's memory is reserved, the request goes on as it comes, the answer goes back as it
comes, and only then the exchange is handed over. Whatever capture does, the caller has its answer.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

from inference_store.platform import traces
from inference_store.proxy.capture import head_size
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.routing import Routing
from inference_store.proxy.watched import Watched

from .asgi import Receive, Scope, Send
from .headers import as_text, end_to_end, length_of
from .heads import EMPTY_QUERY
from .kept import Ticket
from .passing import Passing
from .stripping import Stripping
from .upstreams import Upstreams
from .watching import outcome_of, said

Begin: TypeAlias = Callable[[int, int], Ticket | None]
"""From the sizes of body and head."""


class Forwarding:
    """The application. `begin`: a capture's reservation; None: there is no memory for one."""

    def __init__(
        self, routing: Routing, upstreams: Upstreams, begin: Begin, stripping: Stripping
    ) -> None:
        self._routing = routing
        self._upstreams = upstreams
        self._begin = begin
        self._stripping = stripping
        self.calls = 0
        """Calls that are under way."""

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
        ticket = self._begun(exchange, length_of(headers) or 0) if route.call else None
        session = self._upstreams.session(route.upstream.name)
        passing = Passing(
            route,
            session,
            exchange,
            ticket=ticket,
            stripping=self._stripping,
            receive=receive,
            send=send,
        )
        passing.has_empty_query = EMPTY_QUERY in scope.get("extensions", ())
        name = route.upstream.name
        watched = Watched(
            "rest",
            route.call,
            name,
            lambda: said(scope, headers),
            is_unrecognised=route.is_unrecognised,
        )
        try:
            with traces.within(watched.span):
                await passing.run(headers)
        finally:
            exchange.finished_at = datetime.now(UTC)
            watched.end(outcome_of(exchange), exchange.http_status)
            if ticket is not None and route.call is not None:
                ticket.finish(exchange, route.call, route.rules, route.model)

    def _begun(self, exchange: Exchange, size: int) -> Ticket | None:
        target = len(exchange.path) + len(exchange.query)
        return self._begin(size, target + head_size(exchange.request_headers))
