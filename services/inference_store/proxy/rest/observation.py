"""Describes a REST call: to a span when it begins, by its outcome when it ends."""

from collections.abc import Mapping
from typing import Final

from inference_store.platform import traces
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.observed_call import TRACE_HEADERS, Outcome

from .asgi import Scope
from .forwarded_call import CALLER_GONE
from .headers import Raw

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
