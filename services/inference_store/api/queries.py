"""Which inferences of one model or several, and how many."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access.rights import Right
from inference_store.index.registrations import Registration
from inference_store.query.explain import recording
from inference_store.query.lookup import Extent
from inference_store.query.preparation import prepare
from inference_store.query.search import count

from .access import Access, Asking, Needs, Over
from .answer import Answer
from .conditions import (
    Conditions,
    ConditionsAcross,
    InferenceLink,
    InferenceQuery,
    InferenceQueryAcross,
    Models,
    choose_models,
    read_requested_filter,
    warn_of_left_out,
)
from .dependencies import Querying
from .fields import InQuery
from .http import INFERENCES, ModelId
from .inference_models import InferenceCount, InferencePage
from .inference_pages import (
    AnsweredPage,
    PageRequest,
    build_page,
    compute_fingerprint,
    explain,
    limit_query_time,
    read_page_filter,
    remove_instant,
    resolve_page_sort,
    set_deadline,
)
from .routing import Router
from .streams import STREAMING, answer_page_or_stream

router = Router("inferences")
_SOME = Needs(Right.READ, Over.SOME)
_REFUSALS = (404, 501)
_NARROW = {  # by whether it is asked across models
    False: "The query took too long: narrow received_at, or add a condition that fewer match.",
    True: "The query took too long: narrow received_at, ask fewer models, or add a condition.",
}


@router.add(
    f"POST {INFERENCES}/query",
    InferencePage,
    Right.READ,
    "Query inferences",
    *_REFUSALS,
    also=STREAMING,
)
async def query_inferences(
    model_id: ModelId, body: InferenceQuery, connection: Querying, access: Asking
) -> Response:
    """A page of the inferences that satisfy every condition; or all of them, as a stream, where
    Accept is application/x-ndjson."""
    return await _answer_query(connection, access, body, model_id)


@router.add(
    f"GET {INFERENCES}", InferencePage, Right.READ, "List inferences", *_REFUSALS, also=STREAMING
)
async def list_inferences(
    model_id: ModelId, link: InQuery[InferenceLink], connection: Querying, access: Asking
) -> Response:
    """The query as a link, as far as it fits into one."""
    return await _answer_query(connection, access, link.query(), model_id)


@router.add(f"POST {INFERENCES}/count", InferenceCount, Right.READ, "Count inferences", *_REFUSALS)
async def count_inferences(
    model_id: ModelId, body: Conditions, connection: Querying, access: Asking
) -> Answer:
    """How many inferences satisfy every condition, exactly."""
    return await _answer_count(connection, access, body, model_id)


@router.add(
    "POST /inferences/query",
    InferencePage,
    _SOME,
    "Query inferences of several models",
    *_REFUSALS,
    also=STREAMING,
)
async def query_across(
    body: InferenceQueryAcross, connection: Querying, access: Asking
) -> Response:
    """A page of the inferences of several models that satisfy every condition; or all of them, as
    a stream, where Accept is application/x-ndjson."""
    return await _answer_query(connection, access, body)


@router.add(
    "POST /inferences/count",
    InferenceCount,
    _SOME,
    "Count inferences of several models",
    *_REFUSALS,
)
async def count_across_models(
    body: ConditionsAcross, connection: Querying, access: Asking
) -> Answer:
    """How many inferences of several models satisfy every condition, exactly."""
    return await _answer_count(connection, access, body)


async def _answer_query(
    connection: AsyncConnection, access: Access, body: InferenceQuery, model_id: str | None = None
) -> Response:
    filter = await read_page_filter(body)

    async def ask(
        connection: AsyncConnection, access: Access, page_body: InferenceQuery
    ) -> AnsweredPage:
        is_first = page_body.cursor == body.cursor  # a stream keeps its first page's warnings
        page_body = remove_instant(page_body)
        models, extent = await _find_models(connection, access, body, model_id)
        sort = await resolve_page_sort(connection, [model.model for model in models], page_body)
        question = page_body.to_query_request(filter.tree, newest_first=sort.descending)
        prepared = await prepare(connection, [model.model for model in models], question, extent)
        bound_to = "/inferences" if model_id is None else model_id
        fingerprint = compute_fingerprint(bound_to, page_body, filter.tree)
        warnings = list(prepared.warnings)
        if is_first and isinstance(body, Models):
            warnings += await warn_of_left_out(connection, access, body)
        page_request = PageRequest(models, prepared.query, sort, fingerprint, warnings, filter)
        return await build_page(connection, access, page_body, page_request)

    return await answer_page_or_stream(connection, access, body, ask)


async def _answer_count(
    connection: AsyncConnection, access: Access, body: Conditions, model_id: str | None = None
) -> Answer:
    models, extent = await _find_models(connection, access, body, model_id)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    question = body.to_query_request(filter.tree)
    prepared = await prepare(connection, [model.model for model in models], question, extent)
    deadline = set_deadline(body, access.settings)
    with recording(body.explain) as recorded:
        with limit_query_time("count", _NARROW[extent is None], prepared.query):
            number = await count(connection, prepared.query, deadline=deadline)
        members = await explain(connection, access, prepared.query, recorded)
    members = {**filter.answer_members, **members}
    return Answer(InferenceCount(count=number, warnings=list(prepared.warnings), **members))


async def _find_models(
    connection: AsyncConnection, access: Access, body: Conditions, model_id: str | None
) -> tuple[Sequence[Registration], Extent | None]:
    if model_id is None:
        assert isinstance(body, Models), "it names models if the path names none"
        return await choose_models(connection, access, body), None
    registration, extent = await access.find_model_to_query(connection, model_id)
    return [registration], extent
