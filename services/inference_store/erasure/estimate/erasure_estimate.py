"""Estimates what an erasure would erase: counted without marks, as far as time allows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.mark.pending_deletions import KEYS
from inference_store.erasure.policies.loss_counts import build_loss_columns
from inference_store.erasure.request.criteria import build_predicate
from inference_store.index.tables import inference
from inference_store.objects import Blobs
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.matching import Query, count_matches, match_by_index
from inference_store.query.preparation import build_query, find_doubtful
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .quarantine import ModelQuery, count_quarantined

_NAMES = {"count": "inferences"}
_SUMMED = ("inferences", "objects", "bytes", "unknown_sizes", "held")
_BESIDE = ("undecided", "dead_letters", "parked_events")


@dataclass(frozen=True, slots=True)
class ErasureEstimate:
    """Counts of what would be erased now; what holds protect is counted in `held` alone."""

    inferences: int = 0
    objects: int = 0
    bytes: int = 0
    """Of their inputs, as far as sizes are known."""
    unknown_sizes: int = 0
    """Inferences whose inputs have no known size."""
    dead_letters: int = 0
    parked_events: int = 0
    held: int = 0
    """More of them, inferences, dead letters and parked events, which legal holds keep."""
    undecided: int = 0
    """Inferences that a query by this filter shows and that stay: not all of their metadata or
    predictions is indexed, and what is missing may say otherwise."""
    oldest: datetime | None = None
    newest: datetime | None = None
    partial: bool = False
    """Time was over before all was looked at: there may be more."""


async def prepare_queries(
    connection: AsyncConnection, models: Mapping[int, str], criteria: Mapping[str, Any]
) -> list[ModelQuery]:
    """Return a query for each model. Raises as `build_predicate` and `build_query` do."""
    queries = []
    for model, model_id in sorted(models.items()):
        predicate = await build_predicate(connection, model, criteria)
        query = await build_query(
            connection, range_of_time(model, None, None), [predicate], certain=True
        )
        # as it will be marked: also what another erasure hides, which may still be cancelled
        query = replace(query, marks=False, closed=True)
        queries.append(ModelQuery(model, model_id, criteria, predicate, query))
    return queries


async def estimate_erasure(
    connection: AsyncConnection, blobs: Blobs, queries: Sequence[ModelQuery], deadline: Deadline
) -> dict[int, ErasureEstimate]:
    """Return an estimate for each model, the newest inferences first. Raises
    ObjectStoreUnavailable."""
    estimates = {}
    for model_query in queries:
        estimate = await _estimate_model(connection, model_query.query, deadline)
        doubts = await find_doubtful(
            connection, range_of_time(model_query.model, None, None), [model_query.predicate]
        )
        if doubts is not None and not estimate.partial:
            estimate = await _count_undecided(connection, estimate, doubts, deadline)
        estimates[model_query.model] = await _add_quarantined(
            connection, blobs, model_query, estimate, deadline
        )
    return estimates


async def _add_quarantined(
    connection: AsyncConnection,
    blobs: Blobs,
    model_query: ModelQuery,
    estimate: ErasureEstimate,
    deadline: Deadline,
) -> ErasureEstimate:
    try:
        counts = await count_quarantined(connection, blobs, model_query, deadline)
    except OutOfTime:
        return replace(estimate, partial=True)
    return replace(
        estimate,
        dead_letters=counts["dead_letters"],
        parked_events=counts["parked_events"],
        held=estimate.held + counts["held"],
        partial=estimate.partial or bool(counts["partial"]),
    )


async def _estimate_model(
    connection: AsyncConnection, query: Query, deadline: Deadline
) -> ErasureEstimate:
    total = ErasureEstimate()
    if query.nothing or query.scan_range.empty:
        return total
    for part in await find_pieces_of(
        connection, query.scan_range, newest_first=True, closed=query.closed
    ):
        held = await holds.build_held_condition(connection, part.model, lo=part.lo, hi=part.hi)
        try:
            rows = await fetch(
                connection, _select_counts(query, part, held), deadline, large=query.large
            )
        except OutOfTime:
            return replace(total, partial=True)
        total = _add_row(total, rows[0])
    return total


async def _count_undecided(
    connection: AsyncConnection, estimate: ErasureEstimate, query: Query, deadline: Deadline
) -> ErasureEstimate:
    for part in await find_pieces_of(connection, query.scan_range, newest_first=True):
        try:
            [row] = await fetch(connection, count_matches(query, part), deadline, large=query.large)
        except OutOfTime:
            return replace(estimate, partial=True)
        estimate = replace(estimate, undecided=estimate.undecided + row.matches)
    return estimate


def _select_counts(
    query: Query, scan_range: ScanRange, held: ColumnElement[bool] | None
) -> Select[Any]:
    here = inference.c
    matches, _ = match_by_index(query, scan_range)
    uids = matches.subquery()
    objects_named = [case((here[key].is_not(None), 1), else_=0) for key in KEYS]
    is_held = false() if held is None else held
    losing = build_loss_columns(true(), is_held, here.data_size, here.received_at)
    objects = func.sum(sum(objects_named[1:], objects_named[0])).filter(not_(is_held))
    return select(
        func.coalesce(objects, 0).label("objects"),
        *(column.label(_NAMES.get(name, name)) for name, column in losing.items()),
    ).where(scan_range.of(inference), here.uid.in_(select(uids.c.uid)))


def _add_row(estimate: ErasureEstimate, row: Any) -> ErasureEstimate:
    ends = [
        at for at in (estimate.oldest, estimate.newest, row.oldest, row.newest) if at is not None
    ]
    sums = {name: getattr(estimate, name) + int(getattr(row, name)) for name in _SUMMED}
    return replace(estimate, **sums, oldest=min(ends, default=None), newest=max(ends, default=None))


def sum_estimates(estimates: Iterable[ErasureEstimate]) -> ErasureEstimate:
    """Return the sum of the estimates of all models."""
    total = ErasureEstimate()
    for estimate in estimates:
        more = {name: getattr(total, name) + getattr(estimate, name) for name in _BESIDE}
        total = replace(
            _add_row(total, estimate), **more, partial=total.partial or estimate.partial
        )
    return total
