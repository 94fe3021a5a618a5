"""Counts, sums, percentiles and histograms of inferences, by groups."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Querying, Settings
from inference_store.api.filters import read_requested_filter
from inference_store.api.inference_pages import set_deadline
from inference_store.api.model_selection import choose_models
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.query_recording import record_query
from inference_store.api.query_timing import limit_query_time
from inference_store.api.routers import make_router
from inference_store.api.schemas.aggregates import (
    AggregateAcross,
    InferenceAggregate,
    ShownAggregate,
)
from inference_store.index.registrations import Registration
from inference_store.platform.settings import ApiSettings
from inference_store.query.aggregates import aggregate, build_targets

router = make_router("inferences")
_NARROW = (
    "The aggregate took too long: narrow received_at, add a condition that fewer match, or ask"
    " for fewer measures at once. Counts by one metadata key or by time are the fastest."
)


@router.post(
    "/models/{model_id}/inferences/aggregate",
    response_model=ShownAggregate,
    responses=document_refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ),
    summary="Aggregate inferences",
)
async def aggregate_inferences(
    model_id: ModelId,
    body: InferenceAggregate,
    connection: Querying,
    to: Settings,
    access: Asking,
) -> Answer:
    """Measures of the inferences that satisfy every condition, by groups."""
    model = await access.find_model(connection, model_id)
    return await _answer_aggregate(connection, access, [model], body, to)


@router.post(
    "/inferences/aggregate",
    response_model=ShownAggregate,
    responses=document_refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Aggregate inferences across models",
)
async def aggregate_across(
    body: AggregateAcross, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """The same across models: those of a project, those named, or all that you may read."""
    models = await choose_models(connection, access, body)
    return await _answer_aggregate(connection, access, models, body, to)


async def _answer_aggregate(
    connection: AsyncConnection,
    access: Access,
    models: Sequence[Registration],
    body: InferenceAggregate,
    to: ApiSettings,
) -> Answer:
    filter = await read_requested_filter(body.filter, body.filter_lang)
    targets, prepared = await build_targets(connection, models, body.to_query_request(filter.tree))
    with record_query(body.explain) as explained:
        with limit_query_time("aggregate", _NARROW, prepared.query):
            result = await aggregate(
                connection,
                targets,
                body.aggregation(),
                deadline=set_deadline(body, to),
                unknown_keys=body.unknown_keys,
            )
        explanation = await explained.format(connection, access, prepared.query)
    warnings = [*prepared.warnings, *result.warnings]
    return Answer(
        ShownAggregate.show(result, warnings=warnings, **filter.answer_members, **explanation)
    )
