"""Surrounds every request: its id, its span, its metrics, and its line in the log."""

import re
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

import structlog
from opentelemetry.trace import Span, SpanKind
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from inference_store.platform import traces
from inference_store.platform.metrics import IN_PROGRESS, REQUEST_SECONDS, REQUESTS

from .templates import Templates

_REQUEST_ID = "x-request-id"
_CLIENT_LEFT = 499  # nginx's number: HTTP has no status for it
# What callers send is written to logs and into their answer.
_VALID_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_log = structlog.get_logger()
Failed = Callable[[Request, Exception], Awaitable[Response]]
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class RequestObserver:
    """ASGI: counts, times, logs and traces requests by their route: their path has ids."""

    def __init__(self, app: ASGIApp, templates: Templates, failed: Failed) -> None:
        self._app = app
        self._templates = templates
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        name = _choose_request_id(headers)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_REQUEST_ID] = name
            await send(message)

        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = _begin_span(method, scope, headers)
        with (
            IN_PROGRESS.track_inprogress(),
            traces.ended(span),
            bound_contextvars(request_id=name),
        ):
            try:
                await self._app(scope, receive, noted)
            except ClientDisconnect:  # while its body was read: nobody is there to answer
                status = status or _CLIENT_LEFT
            # the outermost place: logged and answered here, with the request's id
            except Exception as error:
                if status:
                    raise
                answer = await self._failed(Request(scope), error)
                await answer(scope, receive, noted)
            finally:
                # Only now: the path is the one that routes were matched by.
                route = self._templates.of(scope["path"])
                REQUESTS.labels(method, route, str(status or 500)).inc()
                seconds = time.monotonic() - began
                REQUEST_SECONDS.labels(route).observe(seconds)
                about = {"method": method, "route": route, "status": status or 500}
                _log.info("request", action="request", **about, seconds=round(seconds, 4))
                _describe_span(span, method, route, status or 500)


def _choose_request_id(headers: Headers) -> str:
    """Return the caller's id if it is valid, else a new one."""
    sent = headers.get(_REQUEST_ID, "")
    return sent if _VALID_ID.fullmatch(sent) else str(uuid4())


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


def _describe_span(span: Span, method: str, route: str, status: int) -> None:
    if span.is_recording():
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            traces.failed(span, str(status))
