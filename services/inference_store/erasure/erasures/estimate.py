"""What an erasure would erase, counted without marking anything; as far as time allows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, false, func, not_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.mark import marks
from inference_store.erasure.policies.losing import losing_columns
from inference_store.index.tables import inference
from inference_store.objects import Blobs
from inference_store.query.ask import build_query, find_doubtful
from inference_store.query.bounded import Deadline, OutOfTime, fetch
from inference_store.query.matching import Query, count_matches, match_by_index
from inference_store.query.scan_range import ScanRange, find_pieces_of, range_of_time

from .chosen import build_predicate
from .estimated_quarantine import ModelQuery, count_quarantined

_NAMES = {"count": "inferences"}
_SUMMED = ("inferences", "objects", "bytes", "unknown_sizes", "held")
_BESIDE = ("undecided", "dead_letters", "parked_events")


@dataclass(frozen=True, slots=True)
class ErasureEstimate:
    """Counts of what would go now; what holds keep is counted in `held` alone, events that are set
    aside too. `bytes` of those whose size is known; `undecided`: match as the index has them, but
    it may lack what would end that, so they stay. `partial`: time was over before all was looked
    at."""

    inferences: int = 0
    objects: int = 0
    bytes: int = 0
    unknown_sizes: int = 0
    held: int = 0
    undecided: int = 0
    dead_letters: int = 0
    parked_events: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    partial: bool = False


async def prepare_queries(
    connection: AsyncConnection, models: Mapping[int, str], asked: Mapping[str, Any]
) -> list[ModelQuery]:
    """What is asked for of each model. Raises as `chosen` does."""
    found = []
    for model, model_id in sorted(models.items()):
        predicate = await build_predicate(connection, model, asked)
        query = await build_query(
            connection, range_of_time(model, None, None), [predicate], certain=True
        )
        # as it will be marked: also what another erasure hides, which may yet be cancelled
        query = replace(query, marks=False, closed=True)
        found.append(ModelQuery(model, model_id, asked, predicate, query))
    return found


async def estimate_erasure(
    connection: AsyncConnection, blobs: Blobs, asked: Sequence[ModelQuery], deadline: Deadline
) -> dict[int, ErasureEstimate]:
    """What of each model would go, the newest looked at first. Raises BlobsAway."""
    found = {}
    for one in asked:
        told = await _estimate_model(connection, one.query, deadline)
        doubts = await find_doubtful(
            connection, range_of_time(one.model, None, None), [one.predicate]
        )
        if doubts is not None and not told.partial:
            told = await _count_undecided(connection, told, doubts, deadline)
        found[one.model] = await _add_quarantined(connection, blobs, one, told, deadline)
    return found


async def _add_quarantined(
    connection: AsyncConnection,
    blobs: Blobs,
    one: ModelQuery,
    told: ErasureEstimate,
    deadline: Deadline,
) -> ErasureEstimate:
    try:
        asides = await count_quarantined(connection, blobs, one, deadline)
    except OutOfTime:
        return replace(told, partial=True)
    return replace(
        told,
        dead_letters=asides["dead_letter"],
        parked_events=asides["parked_event"],
        held=told.held + asides["held"],
        partial=told.partial or bool(asides["partial"]),
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
        held = await holds.predicate(connection, part.model, lo=part.lo, hi=part.hi)
        try:
            rows = await fetch(
                connection, _select_counts(query, part, held), deadline, large=query.large
            )
        except OutOfTime:
            return replace(total, partial=True)
        total = _add_row(total, rows[0])
    return total


async def _count_undecided(
    connection: AsyncConnection, found: ErasureEstimate, query: Query, deadline: Deadline
) -> ErasureEstimate:
    for part in await find_pieces_of(connection, query.scan_range, newest_first=True):
        try:
            [row] = await fetch(connection, count_matches(query, part), deadline, large=query.large)
        except OutOfTime:
            return replace(found, partial=True)
        found = replace(found, undecided=found.undecided + row.matches)
    return found


def _select_counts(
    query: Query, scan_range: ScanRange, held: ColumnElement[bool] | None
) -> Select[Any]:
    here = inference.c
    matches, _ = match_by_index(query, scan_range)
    uids = matches.subquery()
    named = [case((here[key].is_not(None), 1), else_=0) for key in marks.KEYS]
    is_held = false() if held is None else held
    size = func.coalesce(here.stored_bytes, here.data_size)
    losing = losing_columns(true(), is_held, size, here.received_at)
    objects = func.sum(sum(named[1:], named[0])).filter(not_(is_held))
    return select(
        func.coalesce(objects, 0).label("objects"),
        *(column.label(_NAMES.get(name, name)) for name, column in losing.items()),
    ).where(scan_range.of(inference), here.uid.in_(select(uids.c.uid)))


def _add_row(one: ErasureEstimate, row: Any) -> ErasureEstimate:
    ends = [at for at in (one.oldest, one.newest, row.oldest, row.newest) if at is not None]
    sums = {name: getattr(one, name) + int(getattr(row, name)) for name in _SUMMED}
    return replace(one, **sums, oldest=min(ends, default=None), newest=max(ends, default=None))


def sum_estimates(found: Iterable[ErasureEstimate]) -> ErasureEstimate:
    """All models together."""
    result = ErasureEstimate()
    for each in found:
        more = {name: getattr(result, name) + getattr(each, name) for name in _BESIDE}
        result = replace(_add_row(result, each), **more, partial=result.partial or each.partial)
    return result
