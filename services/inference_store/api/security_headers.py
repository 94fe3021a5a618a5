"""Adds headers to every answer, and limits those of requests."""

from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.inference.errors import HeadersTooLarge

from .answer import HEADERS
from .console import CONSOLE
from .console import POLICY as CONSOLE_POLICY
from .docs_site import DOCS
from .docs_site import POLICY as DOCS_POLICY
from .problems import build_problem

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


class SecurityHeaders:
    """ASGI: adds the headers that an answer does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ours = _find_page_headers(scope["path"])

        async def added(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope.get("scheme") == "https":
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
                for name, value in {**HEADERS, **ours}.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, added)


def _find_page_headers(path: str) -> dict[str, str]:
    """Return the headers that a page of ours has in place of those of an answer."""
    for prefixes, policy in _POLICIES.items():
        if path.startswith(prefixes):
            return {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return {}


class HeaderLimit:
    """ASGI: refuses a request whose line and headers are too large, before anything is done."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > self._most_bytes:
            refusal = HeadersTooLarge(
                f"The request's line and headers are over {self._most_bytes} bytes"
                " (INFERENCE_STORE_API_MAX_HEADER_BYTES)."
            )
            await build_problem(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    path = scope.get("raw_path") or scope["path"].encode()
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(path) + len(scope.get("query_string", b"")) + headers
