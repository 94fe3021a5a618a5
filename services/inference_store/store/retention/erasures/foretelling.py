"""What an erasure would erase, counted without marking anything; as far as time allows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import holds
from inference_store.store.queries.ask import doubted, query_of
from inference_store.store.queries.bounded import Deadline, OutOfTime, fetch
from inference_store.store.queries.matching import Query, counted, led
from inference_store.store.queries.scope import Scope, pieces, window
from inference_store.store.retention import marks
from inference_store.store.tables import inference

from .chosen import truth_of


@dataclass(frozen=True, slots=True)
class Foretold:
    """Counts of what matches now. `bytes` of the data alone, those whose size is known;
    `undecided`: match as the index has them, but it may lack what would end that, so they stay.
    `partial`: time was over before all was looked at."""

    inferences: int = 0
    objects: int = 0
    bytes: int = 0
    unknown_sizes: int = 0
    held: int = 0
    undecided: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    partial: bool = False


async def foretell(
    connection: AsyncConnection, models: Sequence[int], asked: Mapping[str, Any], *, seconds: float
) -> dict[int, Foretold]:
    """What of each model would go, the newest looked at first. Raises as `chosen` does."""
    deadline = Deadline.after(seconds)
    found = {}
    for model in models:
        truth = await truth_of(connection, model, asked)
        where = window(model, None, None)
        query = await query_of(connection, where, [truth], certain=True)
        # as it will be marked: also what another erasure hides, which may yet be cancelled
        query = replace(query, marks=False, closed=True)
        found[model] = await _of_model(connection, query, deadline)
        doubts = await doubted(connection, where, [truth])
        if doubts is not None and not found[model].partial:
            found[model] = await _undecided(connection, found[model], doubts, deadline)
    return found


async def _of_model(connection: AsyncConnection, query: Query, deadline: Deadline) -> Foretold:
    total = Foretold()
    if query.nothing or query.scope.empty:
        return total
    for part in await pieces(connection, query.scope, newest_first=True, closed=query.closed):
        held = await holds.predicate(connection, part.model, lo=part.lo, hi=part.hi)
        try:
            rows = await fetch(connection, _counted(query, part, held), deadline, large=query.large)
        except OutOfTime:
            return replace(total, partial=True)
        total = _added(total, rows[0])
    return total


async def _undecided(
    connection: AsyncConnection, found: Foretold, query: Query, deadline: Deadline
) -> Foretold:
    for part in await pieces(connection, query.scope, newest_first=True):
        try:
            [row] = await fetch(connection, counted(query, part), deadline, large=query.large)
        except OutOfTime:
            return replace(found, partial=True)
        found = replace(found, undecided=found.undecided + row.matches)
    return found


def _counted(query: Query, scope: Scope, held: ColumnElement[bool] | None) -> Select[Any]:
    here = inference.c
    matches, _ = led(query, scope)
    uids = matches.subquery()
    named = [case((here[key].is_not(None), 1), else_=0) for key in marks.KEYS]
    return select(
        func.count().label("inferences"),
        func.coalesce(func.sum(sum(named[1:], named[0])), 0).label("objects"),
        func.coalesce(func.sum(here.data_size), 0).label("bytes"),
        func.count().filter(here.data_size.is_(None)).label("unknown_sizes"),
        (literal(0) if held is None else func.count().filter(held)).label("held"),
        literal(0).label("undecided"),
        func.min(here.received_at).label("oldest"),
        func.max(here.received_at).label("newest"),
    ).where(scope.of(inference), here.uid.in_(select(uids.c.uid)))


def _added(one: Foretold, row: Any) -> Foretold:
    ends = [at for at in (one.oldest, one.newest, row.oldest, row.newest) if at is not None]
    return replace(
        one,
        inferences=one.inferences + int(row.inferences),
        objects=one.objects + int(row.objects),
        bytes=one.bytes + int(row.bytes),
        unknown_sizes=one.unknown_sizes + int(row.unknown_sizes),
        held=one.held + int(row.held),
        undecided=one.undecided + int(row.undecided),
        oldest=min(ends, default=None),
        newest=max(ends, default=None),
    )


def total(found: Iterable[Foretold]) -> Foretold:
    """All models together."""
    result = Foretold()
    for each in found:
        result = replace(_added(result, each), partial=result.partial or each.partial)
    return result
