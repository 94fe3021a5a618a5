"""The api: routes, refusals, metrics. Built from parts that its caller opens and closes."""

from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.responses import HTMLResponse

from inference_store.store.blobs import Blobs
from inference_store.store.dictionary import Dictionary
from inference_store.store.settings import ApiSettings

from . import problems
from .access import check_token, is_guarded
from .measured import Measured
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
    app.add_middleware(Measured, templates=templates, failed=problems.unexpected)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


async def _errors() -> HTMLResponse:
    return HTMLResponse(problems.page())
