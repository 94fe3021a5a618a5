"""Protects against pages of strangers that use the browser of somebody who reaches the api.

A browser sends what any page asks. `Host` has the name that the page used, and the owner of a name
may point it at 127.0.0.1 (DNS rebinding); `Sec-Fetch-Site` and `Origin` tell whose page it is.
"""

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inference_store.inference.errors import ForeignRequest
from inference_store.platform.settings import is_loopback

from .problems import build_problem

CHANGES_NOTHING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})


class LoopbackHost:
    """ASGI: answers only requests that use a name of this machine itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _names_loopback(Headers(scope=scope).get("host", "")):
            refusal = ForeignRequest(
                "With INFERENCE_STORE_AUTH=off only `Host: localhost` and loopback addresses are"
                " answered: ask by one of these, or set INFERENCE_STORE_AUTH=on."
            )
            await build_problem(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class OwnOrigin:
    """ASGI: refuses requests that may change something and come from a page of another origin."""

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        """`allowed`: other origins that may do so; `*`: any."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in CHANGES_NOTHING
            and self._is_foreign(Headers(scope=scope))
        ):
            refusal = ForeignRequest(
                "The request comes from a page of another origin, and"
                " INFERENCE_STORE_API_CORS_ORIGINS does not name it."
            )
            await build_problem(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if "*" in self._allowed or origin in self._allowed:
            return False
        if site is not None:  # what the browser itself says: a proxy may have changed the host
            return site not in _OWN_SITES
        return origin is not None and get_host(origin) != headers.get("host", "").lower()


def get_host(origin: str) -> str:
    """Return an origin's host and port; for `null` and invalid origins, what no request has."""
    return origin.partition("://")[2].lower() or origin


def _names_loopback(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname)
    except ValueError:
        return False
