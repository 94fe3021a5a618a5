"""Counts, sums, percentiles and histograms of inferences, by groups."""

from collections.abc import Sequence

from fastapi import APIRouter
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.asking import asking
from inference_store.api.dependencies import Querying, Settings
from inference_store.api.filters import read_filter
from inference_store.api.inference_pages import deadline
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.aggregates import (
    AggregateAcross,
    InferenceAggregate,
    ShownAggregate,
)
from inference_store.store.aggregates import aggregate, choose
from inference_store.store.aggregates.choose import targets
from inference_store.store.errors import QueryTimeout
from inference_store.store.metrics import QUERY_TIMEOUTS
from inference_store.store.queries.bounded import OutOfTime
from inference_store.store.registrations import Registration
from inference_store.store.rights import Right
from inference_store.store.settings import ApiSettings

router = APIRouter(route_class=GuardedRoute, tags=["inferences"])
_NARROW = (
    "The aggregate took too long: narrow received_at, add a condition that fewer match, or ask"
    " for fewer measures at once. Counts by one metadata key or by time are the fastest."
)


@router.post(
    "/models/{model_id}/inferences/aggregate",
    response_model=ShownAggregate,
    responses=refusals(400, 404, 413, 501),
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
    model = await access.model(connection, model_id)
    return await _aggregated(connection, [model], body, to)


@router.post(
    "/inferences/aggregate",
    response_model=ShownAggregate,
    responses=refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Aggregate inferences across models",
)
async def aggregate_across(
    body: AggregateAcross, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """The same across models: those of a project, those named, or all that you may read."""
    models = await choose(
        connection, within=access.reach, project_id=body.project_id, model_ids=body.model_ids
    )
    return await _aggregated(connection, models, body, to)


async def _aggregated(
    connection: AsyncConnection,
    models: Sequence[Registration],
    body: InferenceAggregate,
    to: ApiSettings,
) -> Answer:
    tree = await read_filter(body.filter, body.filter_lang)
    asked, warnings = await targets(connection, models, body.question(tree))
    try:
        with asking("aggregate", *(each.query for each in asked)):
            found = await aggregate(
                connection,
                asked,
                body.aggregation(),
                deadline=deadline(body, to),
                unknown_keys=body.unknown_keys,
            )
    except OutOfTime:
        QUERY_TIMEOUTS.labels("aggregate").inc()
        raise QueryTimeout(_NARROW) from None
    return Answer(
        {
            "groups": found.groups,
            "others": found.others,
            "approximate": found.approximate,
            "warnings": [*warnings, *found.warnings],
        }
    )
