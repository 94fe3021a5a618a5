"""Which inferences, and how many."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.access import Access, Asking, GuardedRoute, needs
from inference_store.api.answer import Answer
from inference_store.api.asking import asking
from inference_store.api.dependencies import BlobStore, Reading, Settings
from inference_store.api.explaining import explaining
from inference_store.api.inference_pages import Asked, fingerprint, page_of
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.inferences import InferenceCount, InferencePage
from inference_store.api.schemas.links import InferenceLink
from inference_store.api.schemas.questions import Conditions, InferenceQuery
from inference_store.store.blobs import Blobs
from inference_store.store.errors import QueryTimeout
from inference_store.store.metrics import QUERY_TIMEOUTS
from inference_store.store.queries import place
from inference_store.store.queries.ask import prepare
from inference_store.store.queries.bounded import Deadline, OutOfTime
from inference_store.store.queries.count import count as count_matches
from inference_store.store.queries.sort import resolve
from inference_store.store.rights import Right
from inference_store.store.settings import ApiSettings

router = APIRouter(route_class=GuardedRoute, tags=["inferences"])
_NARROW = "The query took too long: narrow received_at, or add a condition that fewer match."


@router.post(
    "/models/{model_id}/inferences/query",
    response_model=InferencePage,
    responses=refusals(400, 404, 413),
    openapi_extra=needs(Right.READ),
    summary="Query inferences",
)
async def query_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    body: InferenceQuery,
    connection: Reading,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> Answer:
    """A page of the inferences that satisfy every condition."""
    return Answer(await _page(connection, access, model_id, body, blobs, to))


@router.get(
    "/models/{model_id}/inferences",
    response_model=InferencePage,
    responses=refusals(404),
    openapi_extra=needs(Right.READ),
    summary="List inferences",
)
async def list_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    link: Annotated[InferenceLink, Query()],
    connection: Reading,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
) -> Answer:
    """The query as a link, as far as it fits into one."""
    return Answer(await _page(connection, access, model_id, link.query(), blobs, to))


@router.post(
    "/models/{model_id}/inferences/count",
    response_model=InferenceCount,
    responses=refusals(400, 404, 413),
    openapi_extra=needs(Right.READ),
    summary="Count inferences",
)
async def count_inferences(
    model_id: ModelId, body: Conditions, connection: Reading, to: Settings, access: Asking
) -> Answer:
    """How many inferences satisfy every condition, exactly."""
    model = (await access.model(connection, model_id)).model
    asked = await prepare(connection, model, body.question())
    deadline = Deadline.after(to.query_timeout_seconds)
    with explaining(body.explain) as explained:
        try:
            with asking("count", asked.query):
                number = await count_matches(connection, asked.query, deadline=deadline)
        except OutOfTime:
            QUERY_TIMEOUTS.labels("count").inc()
            raise QueryTimeout(_NARROW) from None
        told = await explained.shown(connection, access, asked.query)
    return Answer({"count": number, "warnings": asked.warnings, **told})


async def _page(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: InferenceQuery,
    blobs: Blobs,
    settings: ApiSettings,
) -> dict[str, Any]:
    registration = await access.model(connection, model_id)
    model = registration.model
    sort = await resolve(connection, model, body.sort, kind=place.kind_of(body.cursor))
    question = body.question(newest_first=sort.descending)
    found = await prepare(connection, model, question)
    asked_of = fingerprint(model_id, body)
    asked = Asked([registration], found.query, [found.query], sort, asked_of, found.warnings)
    return await page_of(connection, access, blobs, settings, body, asked)
