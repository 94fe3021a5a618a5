"""Which inferences of one model or several, how many, and what they add up to: by groups, and in a
model's overview."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, JsonValue
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access.rights import Right
from inference_store.index import unsettled
from inference_store.index.accounting import Captured, read_captured
from inference_store.index.registrations import Registration
from inference_store.inference.field_docs import Flag
from inference_store.query.aggregates import Aggregated, aggregate
from inference_store.query.aggregates.aggregation import Aggregation
from inference_store.query.bars import estimate_count
from inference_store.query.deadline import Deadline, OutOfTime
from inference_store.query.evaluation.evaluation import Evaluated, Evaluation
from inference_store.query.evaluation.run import evaluate
from inference_store.query.explain import recording
from inference_store.query.lookup import Extent
from inference_store.query.overview import Overview, read_overview
from inference_store.query.plan import Query as ModelQuery
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.search import count

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .conditions import (
    Conditions,
    InferenceLink,
    InferenceQuery,
    InferenceQueryAcross,
    Models,
    choose_models,
    read_requested_filter,
    warn_of_left_out,
)
from .dependencies import Querying
from .fields import InQuery, ReceivedParameters
from .http import INFERENCES, OF_MODEL, ModelId
from .inference_models import Explained, InferenceCount, InferencePage
from .inference_pages import (
    AnsweredPage,
    PageRequest,
    build_page,
    compute_fingerprint,
    explain,
    limit_query_time,
    remove_instant,
    resolve_page_sort,
    set_deadline,
)
from .routing import Router
from .streams import STREAMING, answer_page_or_stream

_EXAMPLES: list[JsonValue] = [
    {
        "received_at": {"from": "2026-11-01T00:00:00Z"},
        "measures": [
            {"function": "count"},
            {"function": "share", "of": "ok", "is": False, "as": "errors"},
            {"function": "percentiles", "of": "model_ms", "at": [50, 95, 99]},
        ],
        "group_by": [{"time": "hour", "zone": "Europe/Berlin"}],
    },
    {"measures": [{"function": "distinct", "of": "data_source", "prefix": "hall"}]},
]


class InferenceAggregate(Aggregation, Conditions):
    """Measures of the inferences that satisfy every condition, by groups."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})


class InferenceEvaluation(Evaluation, Conditions):
    """How right the model was, of the inferences that satisfy every condition and have truth."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"group_by": "camera", "filter": "lighting = 'night'"}]}
    )


class CountQuery(Conditions):
    """Which inferences to count; everything that is given must hold."""

    estimate: Flag = False
    """Whether an estimate from a sample is enough if the exact number takes more than half a
    second; `margin` says how exact it is."""


class CountQueryAcross(Models, CountQuery):
    """Which inferences of which models to count; everything that is given must hold."""


class AggregateAcross(Models, InferenceAggregate):
    """The same across models: all that the caller may read, or fewer."""


class ShownAggregate(Aggregated, Explained):
    """Measures by groups."""


class ShownEvaluation(Evaluated, Explained):
    """How right the model was."""


router = Router("inferences")
_SOME = Needs(Right.READ, Over.SOME)
_REFUSALS = (404, 501)
_PAGED: dict[str, Any] = {"also": STREAMING, "answer": InferencePage}
_NARROW = {  # by whether it is of the model of a path
    True: "The query took too long: narrow received_at, or add a more selective condition.",
    False: "The query took too long: narrow received_at, ask fewer models, or add a condition.",
}
_BEFORE_ESTIMATE_SECONDS = 0.5
_NARROW_AGGREGATE = (
    "The aggregate took too long: narrow received_at, add a more selective condition, or ask"
    " for fewer measures at once. Counts by one metadata key or by time are the fastest."
)


@router.add(f"POST {INFERENCES}/query", Right.READ, "Query inferences", *_REFUSALS, **_PAGED)
async def query_inferences(
    model_id: ModelId, body: InferenceQuery, connection: Querying, access: Asking
) -> Response:
    """A page of the inferences that satisfy every condition; or all of them, as a stream, if Accept
    is application/x-ndjson."""
    return await _answer_query(connection, access, body, model_id)


@router.add(f"GET {INFERENCES}", Right.READ, "List inferences", *_REFUSALS, **_PAGED)
async def list_inferences(
    model_id: ModelId, link: InQuery[InferenceLink], connection: Querying, access: Asking
) -> Response:
    """A query as a link, with the most common conditions."""
    return await _answer_query(connection, access, link.query(), model_id)


@router.add(f"POST {INFERENCES}/count", Right.READ, "Count inferences", *_REFUSALS)
async def count_inferences(
    model_id: ModelId, body: CountQuery, connection: Querying, access: Asking
) -> Answer[InferenceCount]:
    """How many inferences satisfy every condition: exactly, or within a margin if that is asked."""
    return await _answer_count(connection, access, body, model_id)


@router.add(
    "POST /inferences/query", _SOME, "Query inferences of several models", *_REFUSALS, **_PAGED
)
async def query_across(
    body: InferenceQueryAcross, connection: Querying, access: Asking
) -> Response:
    """A page of the inferences of several models that satisfy every condition; or all of them, as a
    stream, if Accept is application/x-ndjson."""
    return await _answer_query(connection, access, body)


@router.add("POST /inferences/count", _SOME, "Count inferences of several models", *_REFUSALS)
async def count_across_models(
    body: CountQueryAcross, connection: Querying, access: Asking
) -> Answer[InferenceCount]:
    """How many inferences of several models satisfy every condition: exactly, or within a margin if
    that is asked."""
    return await _answer_count(connection, access, body)


@router.add(f"POST {INFERENCES}/aggregate", Right.READ, "Aggregate inferences", 501)
async def aggregate_inferences(
    model_id: ModelId, body: InferenceAggregate, connection: Querying, access: Asking
) -> Answer[ShownAggregate]:
    """Measures of the inferences that satisfy every condition, by groups."""
    return await _answer_aggregate(connection, access, body, model_id)


@router.add(f"POST {INFERENCES}/evaluate", Right.READ, "Evaluate a model", *_REFUSALS)
async def evaluate_inferences(
    model_id: ModelId, body: InferenceEvaluation, connection: Querying, access: Asking
) -> Answer[ShownEvaluation]:
    """What is true against what was predicted, of the inferences that satisfy every condition and
    have ground truth: in all, by label, and by slices."""
    async with _asking(connection, access, body, model_id, "evaluate", _NARROW_AGGREGATE) as asked:
        how: Any = {"deadline": asked.deadline, "unknown_keys": body.unknown_keys}
        result = await evaluate(connection, asked.models[0], asked.query, body, **how)
    asked.members["warnings"] += result.warnings
    return Answer(ShownEvaluation.show(result, **asked.members))


@router.add("POST /inferences/aggregate", _SOME, "Aggregate inferences across models", *_REFUSALS)
async def aggregate_across(
    body: AggregateAcross, connection: Querying, access: Asking
) -> Answer[ShownAggregate]:
    """The same across models: those of a project, those named, or all that you may read."""
    return await _answer_aggregate(connection, access, body)


async def _answer_query(
    connection: AsyncConnection, access: Access, body: InferenceQuery, model_id: str | None = None
) -> Response:
    filter = await read_requested_filter(body.filter, body.filter_lang, cursor=body.cursor)

    async def ask(
        connection: AsyncConnection, access: Access, page_body: InferenceQuery
    ) -> AnsweredPage:
        is_first = page_body.cursor == body.cursor  # a stream keeps its first page's warnings
        page_body = remove_instant(page_body)
        models, extent = await _find_models(connection, access, body, model_id)
        sort = await resolve_page_sort(connection, [model.model for model in models], page_body)
        question = page_body.to_query_request(filter, newest_first=sort.descending)
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
    connection: AsyncConnection, access: Access, body: CountQuery, model_id: str | None = None
) -> Answer[InferenceCount]:
    narrow = _NARROW[model_id is not None]
    async with _asking(connection, access, body, model_id, "count", narrow) as asked:
        query, deadline = asked.query, asked.deadline
        try:
            until = deadline.soon(_BEFORE_ESTIMATE_SECONDS) if body.estimate else deadline
            number = await count(connection, query, deadline=until)
        except OutOfTime:
            if not body.estimate:
                raise
            number, margin = await estimate_count(connection, query, deadline=deadline)
            asked.members.update({"margin": margin} if margin else {})
    return Answer(InferenceCount(count=number, **asked.members))


async def _answer_aggregate(
    connection: AsyncConnection,
    access: Access,
    body: InferenceAggregate,
    model_id: str | None = None,
) -> Answer[ShownAggregate]:
    kind, narrow = "aggregate", _NARROW_AGGREGATE
    async with _asking(connection, access, body, model_id, kind, narrow) as asked:
        how: Any = {"deadline": asked.deadline, "unknown_keys": body.unknown_keys}
        result = await aggregate(connection, asked.models, asked.query, body, **how)
    asked.members["warnings"] += result.warnings
    return Answer(ShownAggregate.show(result, **asked.members))


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that is answered by numbers. `members`: of its answer, beside them."""

    models: Sequence[Registration]
    query: ModelQuery
    deadline: Deadline
    members: dict[str, Any]


@asynccontextmanager
async def _asking(  # noqa: PLR0917
    connection: AsyncConnection,
    access: Access,
    body: Conditions,
    model_id: str | None,
    kind: str,
    narrow: str,
) -> AsyncIterator[_Asked]:
    """Prepare a question; what is asked within is limited, and explained if the body says so."""
    models, extent = await _find_models(connection, access, body, model_id)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    question = body.to_query_request(filter)
    prepared = await prepare(connection, [model.model for model in models], question, extent)
    deadline = set_deadline(body, access.settings)
    members = {"warnings": list(prepared.warnings), **filter.answer_members}
    with recording(body.explain) as recorded:
        with limit_query_time(kind, narrow, prepared.query):
            yield _Asked(models, prepared.query, deadline, members)
        members |= await explain(connection, access, prepared.query, recorded)


async def _find_models(
    connection: AsyncConnection, access: Access, body: Conditions, model_id: str | None
) -> tuple[Sequence[Registration], Extent | None]:
    if model_id is None:
        assert isinstance(body, Models), "it names models if the path names none"
        return await choose_models(connection, access, body), None
    registration, extent = await access.find_model_to_query(connection, model_id)
    return [registration], extent


_NARROW_WINDOW = "The overview took too long: narrow received_from and received_to."


class ShownOverview(Overview, Shown):
    """What a model did in a window of time, and what needs attention."""

    model_id: str
    dead_letters: int | None
    """Events of the model that could not be indexed and wait for a decision, whenever they came;
    null for a caller without `admin`. At most 10,000 are counted, as of parked events."""
    parked_events: int | None
    """Events of the model that wait for an object."""
    captured: Captured | None
    """Which calls were captured, of all models together: a call that was missed has no model yet.
    Null for a caller without `read` over everything, and if no producer reports."""


@router.add(f"GET {OF_MODEL}/overview", Right.READ, "Read the overview of a model")
async def get_overview(
    model_id: ModelId, window: InQuery[ReceivedParameters], connection: Querying, access: Asking
) -> Answer[ShownOverview]:
    """Inferences, errors, latency, labels and scores over time, and what needs attention. Counts of
    inferences, errors and predictions are exact; `sampled` says how many inferences the other
    figures are from."""
    model, extent = await access.find_model_to_query(connection, model_id)
    since, until = window.received_from, window.received_to
    request = QueryRequest(since=since, until=until)
    query = (await prepare(connection, model.model, request, extent)).query
    deadline = Deadline.after(access.settings.query_timeout_seconds)
    with limit_query_time("overview", _NARROW_WINDOW, query):
        overview = await read_overview(connection, query, deadline, since=since, until=until)
    waiting = {"dead_letters": ("open", "redrive"), "parked_events": ("parked",)}
    may_know, id = access.has_right(Right.ADMIN, model), model.model_id
    counts = {
        name: await unsettled.count_waiting(connection, id, states) if may_know else None
        for name, states in waiting.items()
    }
    captured = await read_captured(connection) if access.sees.is_everything else None
    return Answer(ShownOverview.show(overview, model_id=id, captured=captured, **counts))
