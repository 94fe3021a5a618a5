"""The api: routes, refusals, metrics. Built from parts that its caller opens and closes."""

from importlib.metadata import version

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi_offline import FastAPIOffline
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api import (
    accounting,
    certificates,
    dead_letters,
    drawing,
    drift,
    erasures,
    exports,
    follow,
    ground_truth,
    holds,
    inferences,
    keys,
    language,
    metadata_edits,
    models,
    policies,
    queries,
    reconciliations,
    replays,
    retention,
    sessions,
    site,
    tags,
    thumbnails,
    views,
)
from inference_store.api.thumbnails import ThumbnailMaker
from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings

from .authentication import Authenticator
from .dependencies import AdmissionControl, Replica
from .follow import Arrivals
from .inference_models import LINES
from .middleware import Foreground, Surroundings
from .routing import complete_openapi
from .thumbnails import ThumbnailPage

_DESCRIPTION = """What models did in production: typed, queryable, and deleted on time.

Ids in paths are percent-escaped (`a/b` is `a%2Fb`); `uid:<uuid>` stands for an inference's id.
Times are RFC 3339 in UTC. Every refusal is `application/problem+json`.
"""
_THUMBNAIL_WAIT_SECONDS = 10.0
_PARTS = (
    models,
    language,
    queries,
    drift,
    follow,  # before the route of an inference, whose id it would be
    inferences,
    views,
    drawing,
    thumbnails,
    metadata_edits,
    tags,
    ground_truth,
    policies,
    retention,
    erasures,
    certificates,
    exports,
    replays,
    holds,
    reconciliations,
    dead_letters,
    accounting,
    keys,
    sessions,
)
# Lines of streams and data of events: schemas that are no whole answer of a route.
_PIECES = (*LINES, ThumbnailPage, Arrivals)


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
    app.state.authenticator = Authenticator(settings, engine)
    app.state.admission = AdmissionControl(
        "query",
        settings.most_queries,
        settings.most_queries_of_one,
        wait_seconds=settings.query_wait_seconds,
    )
    most = settings.streams_at_once
    app.state.streams = AdmissionControl("stream", most, settings.most_streams_of_one)
    app.state.follow_admission = AdmissionControl("follow", most, settings.most_followers_of_one)
    processes = settings.thumbnail_processes
    app.state.thumbnail_admission = AdmissionControl(
        "thumbnail", processes, processes, wait_seconds=_THUMBNAIL_WAIT_SECONDS
    )
    foreground = app.state.foreground = Foreground()
    app.state.thumbnails = ThumbnailMaker(blobs)
    app.state.is_stopping = lambda: False
    # Apps share them: a route knows its app only by the request.
    app.router.routes.extend(route for part in _PARTS for route in part.router.routes)
    app.router.routes.extend(site.list_docs_routes())
    app.router.routes.insert(0, site.REFERENCE)  # the same page, below our header
    if settings.console == "on":
        app.router.routes.extend([*site.list_console_routes(), *sessions.ROUTES])
    complete_openapi(app, settings, _PIECES)
    origins = [name.strip() for name in settings.api_cors_origins.split(",") if name.strip()]
    routes, is_local = AsyncExitStackMiddleware(app.router), settings.auth == "off"
    app.middleware_stack = Surroundings(routes, foreground, origins=origins, is_local=is_local)
    return app
