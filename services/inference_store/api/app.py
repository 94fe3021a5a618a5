"""The api: routes, refusals, metrics. Built from parts that its caller opens and closes."""

from functools import cache
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.index.dictionary import Dictionary
from inference_store.inference.errors import HeadersTooLarge
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings

from . import console, docs_site, problems, sign_in_pages
from .access import Authenticator
from .admission_control import AdmissionControl
from .answer import HEADERS
from .browsers import LoopbackHost, OwnOrigin
from .compression import Compression
from .console import CONSOLE
from .console import POLICY as CONSOLE_POLICY
from .docs_site import DOCS
from .docs_site import POLICY as DOCS_POLICY
from .foreground import Foreground, TrackForeground
from .openapi import complete_openapi
from .paths import EscapedPaths
from .problems import build_problem
from .replica import Replica
from .request_observer import RequestObserver
from .routes import (
    accounting,
    across,
    aggregates,
    audit,
    certificates,
    dead_letters,
    drawing,
    erasures,
    exports,
    exports_erased,
    follow,
    holds,
    inference_retention,
    inferences,
    keys,
    language,
    me,
    metadata,
    models,
    neighbours,
    policies,
    projects,
    queries,
    reconciliations,
    runs,
    sessions,
    thumbnails,
    views,
)
from .templates import Templates
from .thumbnails.cache import ThumbnailCache
from .thumbnails.maker import ThumbnailMaker
from .warnings_header import NAME as WARNINGS

_DESCRIPTION = """What models did in production: typed, queryable, and deleted on time.

Ids in paths are percent-escaped (`a/b` is `a%2Fb`); `uid:<uuid>` stands for an inference's id.
Times are RFC 3339 in UTC. Every refusal is `application/problem+json`.
"""
_THUMBNAIL_WAIT_SECONDS = 10.0
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_PARTS = (
    models,
    projects,
    language,
    queries,
    across,
    aggregates,
    follow,  # before the route of an inference, whose id it would be
    inferences,
    neighbours,
    views,
    drawing,
    thumbnails,
    metadata,
    policies,
    inference_retention,
    runs,
    erasures,
    certificates,
    exports,
    exports_erased,
    holds,
    reconciliations,
    dead_letters,
    accounting,
    keys,
    sessions,
    me,
    audit,
)


def create_app(
    settings: ApiSettings, engine: AsyncEngine, blobs: Blobs, replica: AsyncEngine | None = None
) -> FastAPI:
    """Build the api on a database and an object store; `replica` answers queries, if given."""
    # Its documentation page comes with it: none of a page that an operator opens is fetched.
    app = FastAPIOffline(
        docs_url="/reference",
        swagger_ui_oauth2_redirect_url="/reference/oauth2-redirect",
        title="Inference Store",
        description=_DESCRIPTION,
        version=version("inference-store"),
        redirect_slashes=False,
        separate_input_output_schemas=False,
    )
    app.state.settings, app.state.engine, app.state.blobs = settings, engine, blobs
    app.state.ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
    app.state.ledger_watch = LedgerWatch(app.state.ledger)
    app.state.replica = Replica(engine, replica)
    app.state.dictionary = Dictionary(engine, most_keys=settings.max_keys_per_model)
    app.state.authenticator = Authenticator(settings, engine)
    app.state.admission, app.state.streams = _admit_queries(settings)
    app.state.foreground = Foreground()
    app.state.thumbnails = ThumbnailMaker(blobs, ThumbnailCache())
    app.state.thumbnail_admission = _admit_thumbnails(settings)
    app.state.follow_admission = _admit_followers(settings)
    app.state.is_stopping = lambda: False
    problems.handle_problems(app)
    app.router.routes.extend(_list_routes())
    app.router.routes.extend(docs_site.list_routes())
    if settings.console == "on":
        app.router.routes.extend([*console.list_routes(), *sign_in_pages.list_routes()])
    complete_openapi(app, settings)
    app.state.templates = _build_templates()
    # From the innermost to the outermost.
    app.add_middleware(TrackForeground, foreground=app.state.foreground)
    app.add_middleware(Compression)
    app.add_middleware(EscapedPaths)
    app.add_middleware(HeaderLimit, most_bytes=MOST_HEADER_BYTES)
    origins = [name.strip() for name in settings.api_cors_origins.split(",") if name.strip()]
    app.add_middleware(OwnOrigin, allowed=origins)
    _allow_origins(app, origins)
    if settings.auth == "off":
        app.add_middleware(LoopbackHost)
    app.add_middleware(
        RequestObserver, templates=_build_templates(), failed=problems.handle_unexpected
    )
    app.add_middleware(SecurityHeaders)
    return app


@cache
def _build_templates() -> Templates:
    """Build them from the routes: the OpenAPI, which has the same, is most of a second's work."""
    return Templates(route for route in _list_routes() if isinstance(route, APIRoute))


def _list_routes() -> list[BaseRoute]:
    """Return the routes of all parts.

    Apps share them: a route knows its app only by the request.
    """
    return [route for part in _PARTS for route in part.router.routes]


def _admit_queries(to: ApiSettings) -> tuple[AdmissionControl, AdmissionControl]:
    """Build admission control for queries, and for streams, which do not wait before they begin."""
    queries = to.most_queries, to.most_queries_of_one
    streams = to.streams_at_once, to.most_streams_of_one
    return (
        AdmissionControl("query", *queries, wait_seconds=to.query_wait_seconds),
        AdmissionControl("stream", *streams, wait_seconds=0),
    )


def _admit_followers(to: ApiSettings) -> AdmissionControl:
    return AdmissionControl("follow", to.streams_at_once, to.most_followers_of_one, wait_seconds=0)


def _admit_thumbnails(to: ApiSettings) -> AdmissionControl:
    """Build admission control for thumbnails: who is admitted has one process."""
    processes = to.thumbnail_processes
    return AdmissionControl("thumbnail", processes, processes, wait_seconds=_THUMBNAIL_WAIT_SECONDS)


def _allow_origins(app: FastAPI, origins: list[str]) -> None:
    """Allow pages of these origins to ask from a browser; they send keys, never cookies."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "If-Match"],
            expose_headers=["ETag", "Location", "Retry-After", WARNINGS],
        )


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


MOST_HEADER_BYTES: Final = 16 * 1024
"""Largest head of a request: its line and its headers."""


class HeaderLimit:
    """ASGI: refuses a request whose line and headers are too large, before anything is done."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _head_bytes(scope) > self._most_bytes:
            refusal = HeadersTooLarge(
                f"The request's line and headers are over {self._most_bytes} bytes."
            )
            await build_problem(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    path = scope.get("raw_path") or scope["path"].encode()
    headers = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(path) + len(scope.get("query_string", b"")) + headers
