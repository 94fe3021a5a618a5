"""What surrounds every request: its log and metrics, early refusals, headers, its priority.

A browser sends what any page asks. `Host` has the name that the page used, and the owner of a name
may point it at 127.0.0.1 (DNS rebinding); `Sec-Fetch-Site` and `Origin` tell whose page it is.

All requests compute in one interpreter: while a stream works, every step of another request waits
for its turn. So streams give way to ordinary requests, which are in the foreground until their
answer begins; the pages of a stream are not.
"""

import asyncio
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Final
from urllib.parse import quote, urlsplit
from uuid import uuid4

import structlog
from fastapi.routing import APIRoute
from opentelemetry.trace import Span, SpanKind
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from inference_store.inference.errors import ForeignRequest, HeadersTooLarge, StoreError
from inference_store.platform import traces
from inference_store.platform.metrics import IN_PROGRESS, REQUEST_SECONDS, REQUESTS
from inference_store.platform.settings import is_loopback

from .answer import HEADERS, NAME, build_problem, refuse
from .http import Compressed, choose_coding
from .site import CONSOLE, CONSOLE_POLICY, DOCS, DOCS_POLICY

OTHER = "other"
CHANGES_NOTHING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})


def refuse_foreign_host(scope: Scope) -> StoreError | None:
    """Refuse a request that does not use a name of this machine itself."""
    try:
        is_own = is_loopback(urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname)
    except ValueError:
        is_own = False
    if is_own:
        return None
    return ForeignRequest(
        "With INFERENCE_STORE_AUTH=off only `Host: localhost` and loopback addresses are"
        " answered: ask by one of these, or set INFERENCE_STORE_AUTH=on."
    )


def refuse_foreign_page(scope: Scope, allowed: Collection[str]) -> StoreError | None:
    """Refuse a request that may change something and comes from a page of another origin.

    `allowed`: other origins that may do so; `*`: any.
    """
    headers = Headers(scope=scope)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if scope["method"] in CHANGES_NOTHING or "*" in allowed or origin in allowed:
        return None
    if site is not None:  # what the browser itself says: a proxy may have changed the host
        is_own = site in _OWN_SITES
    else:
        is_own = origin is None or get_host(origin) == headers.get("host", "").lower()
    if is_own:
        return None
    return ForeignRequest(
        "The request comes from a page of another origin, and"
        " INFERENCE_STORE_API_CORS_ORIGINS does not name it."
    )


# Largest head of a request: its line and its headers.
MOST_HEADER_BYTES: Final = 16 * 1024


def refuse_large_head(scope: Scope) -> StoreError | None:
    """Refuse a request whose line and headers are too large."""
    path = scope.get("raw_path") or scope["path"].encode()
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if len(path) + len(scope.get("query_string", b"")) + headers <= MOST_HEADER_BYTES:
        return None
    return HeadersTooLarge(f"The request's line and headers are over {MOST_HEADER_BYTES} bytes.")


def get_host(origin: str) -> str:
    """Return an origin's host and port; for `null` and invalid origins, what no request has."""
    return origin.partition("://")[2].lower() or origin


# A caller that asks one page after the other is idle between an answer and its next request.
_RECENT_SECONDS: Final = 1.0


class Foreground:
    """The requests in the foreground, by a clock that only goes forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock: Final = clock
        self._count = 0
        self._idle_since: float | None = None
        self._idle: Final = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count one more request."""
        self._count += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count one less."""
        self._count -= 1
        if not self._count:
            self._idle_since = self.clock()
            self._idle.set()

    async def wait_until_idle(self, seconds: float, *, since: float) -> bool:
        """Return when no request is in the foreground, or after so many seconds; and whether there
        was one now, or after `since` and within the last second."""
        if self._idle.is_set():
            last = self._idle_since
            return last is not None and last > since and self.clock() - last < _RECENT_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:  # a stream goes on all the same
            pass
        return True


_REQUEST_ID = "x-request-id"
_CLIENT_LEFT = 499  # nginx's number: HTTP has no status for it
# What callers send is written to logs and into their answer.
_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_log = structlog.get_logger()
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Surroundings:
    """All that surrounds the routes, as one layer: each more is passed again after every wait."""

    def __init__(
        self,
        routes: ASGIApp,
        foreground: Foreground,
        *,
        origins: Sequence[str] = (),
        is_local: bool = False,
    ) -> None:
        """`origins`: whose pages may ask from a browser, with keys and never with cookies;
        `is_local`: only requests that use a name of this machine are answered."""
        self._routes = routes
        self._foreground = foreground
        self._origins = frozenset(origins)
        self._is_local = is_local
        self._admitted: ASGIApp = self._admit
        if origins:
            self._admitted = CORSMiddleware(
                self._admit,
                allow_origins=origins,
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["Authorization", "Content-Type", "If-Match"],
                expose_headers=["ETag", "Location", "Retry-After", NAME],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count, time, log and trace a request by its route: its path has ids."""
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        sent = headers.get(_REQUEST_ID, "")
        name = sent if _VALID_ID.fullmatch(sent) else str(uuid4())
        path, is_tls = scope["path"], scope.get("scheme") == "https"
        policy = next((own for begins, own in _POLICIES.items() if path.startswith(begins)), "")
        ours = {_REQUEST_ID.encode(): name.encode(), **_encode_headers(policy, is_tls)}

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = message.get("headers", ())
                more = ours.keys() - {name for name, _ in own}  # what it does not set itself
                message["headers"] = [*own, *((name, ours[name]) for name in ours if name in more)]
            await send(message)

        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = _begin_span(method, scope, headers)
        with IN_PROGRESS.track_inprogress(), traces.ended(span), bound_contextvars(request_id=name):
            try:
                if self._is_local and (refusal := refuse_foreign_host(scope)):
                    await build_problem(refusal)(scope, receive, noted)
                else:
                    await self._admitted(scope, receive, noted)
            except ClientDisconnect:  # while its body was read: nobody is there to answer
                status = status or _CLIENT_LEFT
            # the outermost place: logged and answered here, with the request's id
            except Exception as error:
                if status:
                    raise
                await refuse(Request(scope), error)(scope, receive, noted)
            finally:
                _record(scope, span, method, status or 500, began)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request answered by its route, in the foreground until its answer begins."""
        refusal = refuse_foreign_page(scope, self._origins) or refuse_large_head(scope)
        if refusal is not None:
            await build_problem(refusal)(scope, receive, send)
            return
        # Routes match the path as it came: decoded, `a%2Fb` would be two segments.
        raw = scope.get("raw_path") or quote(scope["path"]).encode()
        scope["path"] = raw.decode("latin-1")
        coding = choose_coding(",".join(Headers(scope=scope).getlist("accept-encoding")))
        if coding is not None:
            send = Compressed(send, coding).send_with_compression
        has_begun = False

        async def begun(message: Message) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._foreground.leave()
            await send(message)

        self._foreground.enter()
        try:
            await self._routes(scope, receive, begun)
        except Exception as error:
            if has_begun or isinstance(error, ClientDisconnect):
                raise
            await refuse(Request(scope), error)(scope, receive, begun)
            error.__traceback__ = None  # one that is raised again and again would grow
        finally:
            if not has_begun:
                self._foreground.leave()


def _begin_span(method: str, scope: Scope, headers: Headers) -> Span:
    if not traces.is_on():
        return traces.begin("")
    # No `url.path` or `url.query`: they hold ids and values of filters.
    attributes = {
        "http.request.method": method,
        "url.scheme": scope["scheme"],
        "network.protocol.version": scope["http_version"],
    }
    return traces.begin(method, SpanKind.SERVER, attributes, headers=headers)


def _record(scope: Scope, span: Span, method: str, status: int, began: float) -> None:
    # only now: the router has added it, unless the request was refused before
    matched = scope.get("route")
    route = matched.path_format if isinstance(matched, APIRoute) else OTHER
    REQUESTS.labels(method, route, str(status)).inc()
    seconds = time.monotonic() - began
    REQUEST_SECONDS.labels(route).observe(seconds)
    about = {"method": method, "route": route, "status": status}
    _log.info("request", action="request", **about, seconds=round(seconds, 4))
    if span.is_recording():
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            traces.failed(span, str(status))


# The pages of the OpenAPI: their scripts and styles are served from here, with a few lines inside
# the page.
_PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; worker-src 'self' blob:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
_POLICIES: Final = {
    ("/reference", "/redoc", "/static-offline-docs/"): _PAGE_POLICY,
    (f"{DOCS}/",): DOCS_POLICY,
    (f"{CONSOLE}/",): CONSOLE_POLICY,
}


@cache
def _encode_headers(policy: str, is_tls: bool) -> Mapping[bytes, bytes]:
    ours = dict(HEADERS)
    if policy:
        ours |= {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    if is_tls:
        ours["Strict-Transport-Security"] = "max-age=31536000"
    return {name.lower().encode(): value.encode() for name, value in ours.items()}
