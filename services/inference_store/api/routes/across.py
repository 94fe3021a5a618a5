"""Which inferences of several models, and how many."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.api.access import Access, Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.asking import asking
from inference_store.api.dependencies import BlobStore, Querying, Settings
from inference_store.api.explaining import explaining
from inference_store.api.filters import read_filter
from inference_store.api.inference_pages import Asked, ShownPage, deadline, fingerprint, page_of
from inference_store.api.problems import refusals
from inference_store.api.schemas.across import ConditionsAcross, InferenceQueryAcross, Models
from inference_store.api.schemas.inferences import InferenceCount, InferencePage
from inference_store.api.schemas.questions import InferenceQuery
from inference_store.api.streams import STREAMING, answered
from inference_store.store.errors import Fault, Invalid, QueryTimeout
from inference_store.store.metrics import QUERY_TIMEOUTS
from inference_store.store.queries import place
from inference_store.store.queries.across import count_across, spread
from inference_store.store.queries.ask import prepare
from inference_store.store.queries.bounded import OutOfTime
from inference_store.store.queries.sort import resolve
from inference_store.store.registrations import Registration
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["inferences"])
MOST_MODELS = 1_000
_NARROW = "The query took too long: narrow received_at, ask fewer models, or add a condition."


@router.post(
    "/inferences/query",
    response_model=InferencePage,
    responses=refusals(400, 404, 413, 501, also=STREAMING),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Query inferences of several models",
)
async def query_across(  # noqa: PLR0917  (FastAPI calls it by name)
    body: InferenceQueryAcross,
    connection: Querying,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
    request: Request,
) -> Response:
    """A page of the inferences of several models that satisfy every condition; or all of them, as
    a stream, where Accept is application/x-ndjson."""
    tree = await read_filter(body.filter, body.filter_lang)

    async def ask(
        connection: AsyncConnection, access: Access, asked_body: InferenceQuery
    ) -> ShownPage:
        models = await _models(connection, access, body)
        numbers = [each.model for each in models]
        kind = place.kind_of(asked_body.cursor)
        sort = await resolve(connection, numbers, body.sort, kind=kind)
        question = body.question(tree, newest_first=sort.descending)
        prepared = await prepare(connection, numbers, question)
        queries = await spread(connection, prepared.query, numbers)
        asked_of = fingerprint("/inferences", body, tree)
        asked = Asked(models, prepared.query, queries, sort, asked_of, prepared.warnings)
        return await page_of(connection, access, blobs, to, asked_body, asked)

    return await answered(request, connection, access, to, body, ask)


@router.post(
    "/inferences/count",
    response_model=InferenceCount,
    responses=refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Count inferences of several models",
)
async def count_across_models(
    body: ConditionsAcross, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """How many inferences of several models satisfy every condition, exactly."""
    models = [each.model for each in await _models(connection, access, body)]
    tree = await read_filter(body.filter, body.filter_lang)
    asked = await prepare(connection, models, body.question(tree))
    queries = await spread(connection, asked.query, models)
    with explaining(body.explain) as explained:
        try:
            with asking("count", asked.query):
                number = await count_across(connection, queries, deadline=deadline(body, to))
        except OutOfTime:
            QUERY_TIMEOUTS.labels("count").inc()
            raise QueryTimeout(_NARROW) from None
        told = await explained.shown(connection, access, asked.query)
    return Answer({"count": number, "warnings": asked.warnings, **told})


async def _models(
    connection: AsyncConnection, access: Access, body: Models
) -> Sequence[Registration]:
    """The models that are asked. Raises NotFound as a path does; Invalid where they are many."""
    found = await access.models(
        connection, model_ids=body.model_ids, project_id=body.project_id, limit=MOST_MODELS + 1
    )
    if len(found) > MOST_MODELS:
        fault = Fault("model_ids", f"at most {MOST_MODELS} models are asked at once")
        raise Invalid(
            f"These are more than {MOST_MODELS} models: name a project_id or model_ids.",
            faults=[fault],
        )
    return found
