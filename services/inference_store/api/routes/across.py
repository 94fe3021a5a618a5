"""Which inferences of several models, and how many."""

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, Over, needs
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
from inference_store.api.model_selection import choose_models, warn_of_left_out
from inference_store.api.problems import document_refusals
from inference_store.api.query_recording import record_query
from inference_store.api.query_timing import limit_query_time
from inference_store.api.routers import make_router
from inference_store.api.schemas.across import ConditionsAcross, InferenceQueryAcross
from inference_store.api.schemas.inferences import InferenceCount, InferencePage
from inference_store.api.schemas.questions import InferenceQuery
from inference_store.api.streams import STREAMING, answer_page_or_stream
from inference_store.query.preparation import prepare
from inference_store.query.search import build_queries, count

router = make_router("inferences")
_NARROW = "The query took too long: narrow received_at, ask fewer models, or add a condition."


@router.post(
    "/inferences/query",
    response_model=InferencePage,
    responses=document_refusals(400, 404, 413, 501, also=STREAMING),
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
    filter = await read_page_filter(body)

    async def ask(
        connection: AsyncConnection, access: Access, page_body: InferenceQuery
    ) -> AnsweredPage:
        is_first = page_body.cursor == body.cursor  # a stream keeps its first page's warnings
        page_body = remove_instant(page_body)
        models = await choose_models(connection, access, body)
        numbers = [model.model for model in models]
        sort = await resolve_page_sort(connection, numbers, page_body)
        question = body.to_query_request(filter.tree, newest_first=sort.descending)
        prepared = await prepare(connection, numbers, question)
        queries = await build_queries(connection, prepared.query, numbers)
        fingerprint = compute_fingerprint("/inferences", body, filter.tree)
        warnings = list(prepared.warnings)
        if is_first:
            warnings += await warn_of_left_out(connection, access, body)
        page_request = PageRequest(
            models, prepared.query, queries, sort, fingerprint, warnings, filter
        )
        return await build_page(connection, access, blobs, to, page_body, page_request)

    return await answer_page_or_stream(request, connection, access, to, body, ask)


@router.post(
    "/inferences/count",
    response_model=InferenceCount,
    responses=document_refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Count inferences of several models",
)
async def count_across_models(
    body: ConditionsAcross, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """How many inferences of several models satisfy every condition, exactly."""
    models = [model.model for model in await choose_models(connection, access, body)]
    filter = await read_requested_filter(body.filter, body.filter_lang)
    prepared = await prepare(connection, models, body.to_query_request(filter.tree))
    queries = await build_queries(connection, prepared.query, models)
    with record_query(body.explain) as explained:
        with limit_query_time("count", _NARROW, prepared.query):
            number = await count(connection, queries, deadline=set_deadline(body, to))
        members = await explained.format(connection, access, prepared.query)
    members = {**filter.answer_members, **members}
    return Answer(InferenceCount(count=number, warnings=list(prepared.warnings), **members))
