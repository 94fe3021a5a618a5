"""The api: routes, refusals, metrics. Built from parts that its caller opens and closes."""

import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inference_store.store.blobs import Blobs
from inference_store.store.dictionary import Dictionary
from inference_store.store.metrics import REQUEST_SECONDS, REQUESTS
from inference_store.store.settings import ApiSettings

from . import problems
from .access import check_token, is_guarded
from .paths import EscapedPaths
from .replica import Replica
from .routes import dead_letters, inferences, metadata, models, queries, retention
from .templates import Templates

_DESCRIPTION = """What models did in production: typed, queryable, and deleted on time.

Ids in paths are percent-escaped (`a/b` is `a%2Fb`); `uid:<uuid>` stands for an inference's id.
Times are RFC 3339 in UTC. Every refusal is `application/problem+json`.
"""


def create_app(
    settings: ApiSettings, engine: AsyncEngine, blobs: Blobs, replica: AsyncEngine | None = None
) -> FastAPI:
    """The api on a database and an object store; `replica` answers the questions, if given."""
    # Its documentation page comes with it: none of a page that an operator opens is fetched.
    app = FastAPIOffline(
        title="Inference Store",
        description=_DESCRIPTION,
        version=version("inference-store"),
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.settings, app.state.engine, app.state.blobs = settings, engine, blobs
    app.state.replica = Replica(engine, replica)
    app.state.dictionary = Dictionary(engine, most_keys=settings.max_keys_per_model)
    problems.handle_problems(app)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(check_token)])
    for part in (models, queries, inferences, metadata, retention, dead_letters):
        v1.include_router(part.router)
    app.include_router(v1)
    app.add_api_route(problems.PAGE, _errors, include_in_schema=False)
    app.add_middleware(EscapedPaths)
    problems.document(app, guarded=is_guarded(settings))
    templates = cache(lambda: Templates(app.openapi()["paths"]))
    app.state.templates = templates
    app.add_middleware(Measured, templates=templates)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _errors() -> HTMLResponse:
    return HTMLResponse(problems.page())


class Measured:
    """ASGI: counts and times requests by their route, not by their path."""

    def __init__(self, app: ASGIApp, templates: Callable[[], Templates]) -> None:
        self._app = app
        self._templates = templates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = self._templates().of(scope["path"])
            REQUESTS.labels(scope["method"], route, str(status)).inc()
            REQUEST_SECONDS.labels(route).observe(time.monotonic() - began)
