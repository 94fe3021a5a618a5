"""One query of several models: pages in order of time, and counts.

As for one model, a page first scans the newest inferences and then uses driving indexes; partition
after partition, each for all models, before the next. The models and partitions of a statement are
bounded, so that planning it is cheap and its locks are few.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import CompoundSelect, Integer, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, inference

from .deadline import Deadline, OutOfTime, fetch
from .hit import Hit
from .matching import Query, count_matches, match_by_index, match_by_scan, order_matches
from .page import SCAN
from .progress import Progress
from .scan_range import (
    HIGHEST,
    LOWEST,
    ScanRange,
    find_pieces_of,
    span_around,
    split_groups,
    take_unbroken,
)
from .stored_counts import read_numbers

MODELS = 8
_FEW_SCANS = 4
_LEAST_SCAN = 50
_LONGEST_SCAN = 64
Unit = tuple[Query, ScanRange]
"""A model's query, and the range that it reads."""


async def build_queries(
    connection: AsyncConnection, query: Query, models: Sequence[int]
) -> tuple[Query, ...]:
    """Return the query for each of these models."""
    here = erasing.c
    marked = select(here.model).where(here.model.in_(models), here.scope == "inference").distinct()
    marks = set((await connection.execute(marked)).scalars())
    return tuple(
        replace(query, scan_range=replace(query.scan_range, model=model), marks=model in marks)
        for model in models
    )


def split_batches(queries: Sequence[Query]) -> Iterator[Sequence[Query]]:
    """Yield batches of `MODELS` models; smaller ones if the conditions take many index scans or
    comparisons."""
    if not queries:
        return
    first = queries[0]
    scans = sum(condition.scans for condition in first.conditions)
    size = MODELS * _FEW_SCANS // max(scans, _FEW_SCANS)
    size = max(1, min(size, first.at_once // first.group))
    for start in range(0, len(queries), size):
        yield queries[start : start + size]


def pair_units(queries: Sequence[Query], parts: Sequence[ScanRange]) -> list[Unit]:
    """Return each model's query in each of the parts, which are ranges of any one model."""
    return [
        (query, replace(part, model=query.scan_range.model))
        for part in parts
        for query in queries
        if not part.empty
    ]


@dataclass(slots=True, kw_only=True)
class SearchAcross(Progress):
    """The matches of a search so far; everything up to `searched` was checked."""

    limit: int
    newest_first: bool
    hits: list[Hit] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """The number of hits that the page still takes."""
        return self.limit - len(self.hits)

    def take(self, hits: Sequence[Hit], scan_range: ScanRange) -> None:
        """Add the first of these hits, which all models have in the range."""
        best = sorted(hits, key=lambda hit: hit.uid, reverse=self.newest_first)
        self.hits.extend(best[: self.missing])
        self.searched = scan_range.lo if self.newest_first else UUID(int=scan_range.hi.int - 1)


async def find_across(
    connection: AsyncConnection,
    queries: Sequence[Query],
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
) -> SearchAcross:
    """Find up to `limit` hits in order of time. Raises OutOfTime only if nothing was checked."""
    newest_first = not queries or queries[0].newest_first
    search = SearchAcross(
        limit=limit, newest_first=newest_first, deadline=deadline, goes_on=goes_on
    )
    if not queries or queries[0].nothing or queries[0].scan_range.empty:
        return search
    first = queries[0]
    parts = await find_pieces_of(connection, first.scan_range, newest_first=first.newest_first)
    try:
        rest = await _scan(connection, queries, parts, search, scan)
        await _follow(connection, queries, rest, search)
    except OutOfTime:
        if search.searched is None:
            raise
        search.out_of_time = True
    return search


async def count_across(
    connection: AsyncConnection, queries: Sequence[Query], *, deadline: Deadline
) -> int:
    """Count the matches in all of them. Raises OutOfTime."""
    if not queries or queries[0].nothing or queries[0].scan_range.empty:
        return 0
    first, what = queries[0], "count the matches"
    search = await find_pieces_of(connection, first.scan_range, newest_first=True)
    stored_numbers = await read_numbers(connection, queries, search, deadline)
    matches = sum(stored_numbers.values())
    for group in split_groups(search, first.group):
        for batch in split_batches(queries):
            units = [unit for unit in pair_units(batch, group) if unit[1] not in stored_numbers]
            if not units:
                continue
            statement = partial(_select_counts, units)
            rows = await fetch(connection, statement, deadline, large=first.large, what=what)
            matches += int(rows[0][0])
    return matches


def _select_counts(units: Sequence[Unit]) -> Select[Any]:
    together = union_all(
        *(count_matches(query, scan_range) for query, scan_range in units)
    ).subquery()
    return select(func.sum(together.c.matches))


async def _scan(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[ScanRange],
    search: SearchAcross,
    scan: int,
) -> Sequence[ScanRange]:
    """Test inference after inference, as `page` does; return the pieces not yet searched."""
    first, length = queries[0], scan
    if not first.conditions:
        return parts
    while parts and search.missing > 0:
        stride, parts = await _choose_stride(connection, queries, parts, length, search.until)
        hits: list[Hit] = []
        for batch in split_batches(queries):
            selects = [
                partial(_select_scanned, *unit, search.missing)
                for unit in pair_units(batch, [stride])
            ]
            what = "walk in order of time"
            hits += await _fetch(connection, selects, search.until, what, large=first.large)
        search.take(hits, stride)
        if first.is_driven:
            break
        search.came_on = length > scan
        length = min(2 * length, _LONGEST_SCAN * scan)
    return parts


async def _choose_stride(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[ScanRange],
    length: int,
    deadline: Deadline,
) -> tuple[ScanRange, Sequence[ScanRange]]:
    """Return the next range to scan, with a fair share of each model, and the pieces after it."""
    share = max(length // len(queries), _LEAST_SCAN if length >= SCAN else 1)
    newest_first = queries[0].newest_first
    run = take_unbroken(parts)
    here = span_around(run)
    ends: list[UUID] = []
    for batch in split_batches(queries):
        lasts = []
        for query, scan_range in pair_units(batch, [here]):
            uids = select(inference.c.uid).where(scan_range.of(inference))
            last = uids.order_by(query.order(inference.c.uid)).offset(share - 1).limit(1)
            lasts.append(partial(_add_model, query, last))
        hits = await _fetch(connection, lasts, deadline, "see how far to walk")
        ends += [hit.uid for hit in hits]
    if not ends:
        return here, parts[len(run) :]
    if newest_first:
        edge = max(ends)
        stride, after = here.clip(edge, HIGHEST), (LOWEST, edge)
    else:
        edge = UUID(int=min(ends).int + 1)
        stride, after = here.clip(LOWEST, edge), (edge, HIGHEST)
    rest = [part.clip(*after) for part in parts]
    return stride, [part for part in rest if not part.empty]


async def _follow(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[ScanRange],
    search: SearchAcross,
) -> None:
    """Use driving indexes: one partition, then two, then more, until the page is full."""
    start, size = 0, 1
    while start < len(parts) and search.missing > 0:
        group = parts[start : start + size]
        share = 1.0 if len(group) == 1 else 0.5
        try:
            await _follow_group(connection, queries, group, search, share=share)
        except OutOfTime:
            # One partition at a time: the nearest ones may still be done in time.
            for part in group:
                if search.missing > 0:
                    await _follow_group(connection, queries, [part], search)
        start, size = start + size, min(2 * size, queries[0].group)


async def _follow_group(
    connection: AsyncConnection,
    queries: Sequence[Query],
    group: Sequence[ScanRange],
    search: SearchAcross,
    *,
    share: float = 1.0,
) -> None:
    """Search these partitions for all models; later models only beyond what was found."""
    hits: list[Hit] = []
    scopes = list(group)
    for batch in split_batches(queries):
        parts = []
        for query, scan_range in pair_units(batch, scopes):
            parts.append(partial(_select_driven, query, scan_range, search.missing))
        if parts:
            first = queries[0]
            what = "let an index lead" if first.is_driven else "read in order of time"
            hits += await _fetch(
                connection, parts, search.until, what, share=share, large=first.large
            )
        hits.sort(key=lambda hit: hit.uid, reverse=search.newest_first)
        del hits[search.missing :]
        if len(hits) == search.missing:
            worst = hits[-1].uid
            bound = (worst, HIGHEST) if search.newest_first else (LOWEST, worst)
            scopes = [scan_range.clip(*bound) for scan_range in group]
    search.take(hits, span_around(group))
    search.came_on = True


def _select_scanned(query: Query, scan_range: ScanRange, limit: int) -> Select[Any]:
    return _add_model(query, order_matches(query, match_by_scan(query, scan_range), limit))


def _select_driven(query: Query, scan_range: ScanRange, limit: int) -> Select[Any]:
    matches, unique = match_by_index(query, scan_range)
    return _add_model(query, order_matches(query, matches, limit, unique=unique))


def _add_model(query: Query, search: Select[Any]) -> Select[Any]:
    """Add the model to a SELECT of uids."""
    uids = search.subquery()
    return select(literal(query.scan_range.model, Integer).label("model"), uids.c.uid)


async def _fetch(
    connection: AsyncConnection,
    parts: Sequence[Callable[[], Select[Any]]],
    deadline: Deadline,
    what: str,
    *,
    share: float = 1.0,
    large: bool = False,
) -> list[Hit]:
    def together() -> CompoundSelect[Any]:
        return union_all(*(part() for part in parts))

    rows = await fetch(connection, together, deadline, large=large, share=share, what=what)
    return [Hit(row.model, row.uid) for row in rows]
