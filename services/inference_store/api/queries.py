"""Which inferences, and how many."""

from typing import Annotated

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access.rights import Right
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from inference_store.query.across_models import build_queries, count_across
from inference_store.query.count import count as count_matches
from inference_store.query.preparation import prepare

from .access import Access, Asking, Needs, Over
from .answer import Answer
from .conditions import (
    Conditions,
    ConditionsAcross,
    InferenceLink,
    InferenceQuery,
    InferenceQueryAcross,
    choose_models,
    read_requested_filter,
    warn_of_left_out,
)
from .dependencies import BlobStore, Querying, Settings
from .http import ModelId
from .inference_models import InferenceCount, InferencePage
from .inference_pages import (
    AnsweredPage,
    PageRequest,
    build_page,
    compute_fingerprint,
    limit_query_time,
    read_page_filter,
    record_query,
    remove_instant,
    resolve_page_sort,
    set_deadline,
)
from .routing import Router
from .streams import STREAMING, Ask, answer_page_or_stream

router = Router("inferences")
_NEEDED = Needs(Right.READ, Over.SOME)
_NARROW = "The query took too long: narrow received_at, or add a condition that fewer match."


@router.add(
    "POST /models/{model_id}/inferences/query",
    InferencePage,
    Right.READ,
    "Query inferences",
    404,
    501,
    also=STREAMING,
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


@router.add(
    "GET /models/{model_id}/inferences",
    InferencePage,
    Right.READ,
    "List inferences",
    404,
    501,
    also=STREAMING,
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


@router.add(
    "POST /models/{model_id}/inferences/count",
    InferenceCount,
    Right.READ,
    "Count inferences",
    404,
    501,
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
                connection, prepared.query, deadline=set_deadline(body, to)
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


_NARROW_ACROSS = (
    "The query took too long: narrow received_at, ask fewer models, or add a condition."
)


@router.add(
    "POST /inferences/query",
    InferencePage,
    _NEEDED,
    "Query inferences of several models",
    404,
    501,
    also=STREAMING,
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


@router.add(
    "POST /inferences/count",
    InferenceCount,
    _NEEDED,
    "Count inferences of several models",
    404,
    501,
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
        with limit_query_time("count", _NARROW_ACROSS, prepared.query):
            number = await count_across(connection, queries, deadline=set_deadline(body, to))
        members = await explained.format(connection, access, prepared.query)
    members = {**filter.answer_members, **members}
    return Answer(InferenceCount(count=number, warnings=list(prepared.warnings), **members))
