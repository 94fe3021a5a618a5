"""Which inferences, and how many."""

from typing import Annotated

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import BlobStore, Querying, Settings
from inference_store.api.filters import read_requested_filter
from inference_store.api.inference_pages import (
    AnsweredPage,
    PageRequest,
    build_page,
    compute_fingerprint,
    read_page_filter,
    remove_instant,
    resolve_page_sort,
    set_deadline,
)
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.query_recording import record_query
from inference_store.api.query_timing import limit_query_time
from inference_store.api.routers import make_router
from inference_store.api.schemas.inferences import InferenceCount, InferencePage
from inference_store.api.schemas.links import InferenceLink
from inference_store.api.schemas.questions import Conditions, InferenceQuery
from inference_store.api.streams import STREAMING, Ask, answer_page_or_stream
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.preparation import prepare
from inference_store.query.search import count as count_matches

router = make_router("inferences")
_NARROW = "The query took too long: narrow received_at, or add a condition that fewer match."


@router.post(
    "/models/{model_id}/inferences/query",
    response_model=InferencePage,
    responses=document_refusals(400, 404, 413, 501, also=STREAMING),
    openapi_extra=needs(Right.READ),
    summary="Query inferences",
)
async def query_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    body: InferenceQuery,
    connection: Querying,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
    request: Request,
) -> Response:
    """A page of the inferences that satisfy every condition; or all of them, as a stream, where
    Accept is application/x-ndjson."""
    ask = await _make_ask(model_id, body, blobs, to)
    return await answer_page_or_stream(request, connection, access, to, body, ask)


@router.get(
    "/models/{model_id}/inferences",
    response_model=InferencePage,
    responses=document_refusals(404, 501, also=STREAMING),
    openapi_extra=needs(Right.READ),
    summary="List inferences",
)
async def list_inferences(  # noqa: PLR0917  (FastAPI calls it by name)
    model_id: ModelId,
    link: Annotated[InferenceLink, Query()],
    connection: Querying,
    blobs: BlobStore,
    to: Settings,
    access: Asking,
    request: Request,
) -> Response:
    """The query as a link, as far as it fits into one."""
    body = link.query()
    ask = await _make_ask(model_id, body, blobs, to)
    return await answer_page_or_stream(request, connection, access, to, body, ask)


@router.post(
    "/models/{model_id}/inferences/count",
    response_model=InferenceCount,
    responses=document_refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ),
    summary="Count inferences",
)
async def count_inferences(
    model_id: ModelId, body: Conditions, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """How many inferences satisfy every condition, exactly."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    prepared = await prepare(
        connection, registration.model, body.to_query_request(filter.tree), extent
    )
    with record_query(body.explain) as explained:
        with limit_query_time("count", _NARROW, prepared.query):
            number = await count_matches(
                connection, [prepared.query], deadline=set_deadline(body, to)
            )
        members = await explained.format(connection, access, prepared.query)
    members = {**filter.answer_members, **members}
    return Answer(InferenceCount(count=number, warnings=list(prepared.warnings), **members))


async def _make_ask(
    model_id: str, body: InferenceQuery, blobs: Blobs, settings: ApiSettings
) -> Ask:
    """Return a function that answers a page of the model's inferences."""
    filter = await read_page_filter(body)

    async def ask(
        connection: AsyncConnection, access: Access, body: InferenceQuery
    ) -> AnsweredPage:
        body = remove_instant(body)
        registration, extent = await access.find_model_to_query(connection, model_id)
        model = registration.model
        sort = await resolve_page_sort(connection, model, body)
        question = body.to_query_request(filter.tree, newest_first=sort.descending)
        prepared = await prepare(connection, model, question, extent)
        fingerprint = compute_fingerprint(model_id, body, filter.tree)
        page_request = PageRequest(
            [registration],
            prepared.query,
            [prepared.query],
            sort,
            fingerprint,
            prepared.warnings,
            filter,
        )
        return await build_page(connection, access, blobs, settings, body, page_request)

    return ask
