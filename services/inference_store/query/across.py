"""The same question of several models: pages in order of time, and counts.

As for one model a page first walks what is nearest and then lets an index lead; partition after
partition, each for all models, before the next. A statement looks at so many models and
partitions at most that planning it is cheap and its locks are few.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import CompoundSelect, Integer, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, inference

from .bounded import Deadline, OutOfTime, fetch
from .hit import Hit
from .matching import Query, counted, led, ordered, walked
from .page import WALK
from .progress import Progress
from .scope import HIGHEST, LOWEST, Scope, around, groups, pieces, unbroken
from .stored import numbers

MODELS = 8
_FEW_SCANS = 4
_LEAST_WALK = 50
_LONGEST_WALK = 64
Unit = tuple[Query, Scope]
"""A model's question and the span of uids where it is asked."""


async def spread(
    connection: AsyncConnection, query: Query, models: Sequence[int]
) -> tuple[Query, ...]:
    """The question of each of these models."""
    here = erasing.c
    marked = select(here.model).where(here.model.in_(models), here.scope == "inference").distinct()
    marks = set((await connection.execute(marked)).scalars())
    return tuple(
        replace(query, scope=replace(query.scope, model=model), marks=model in marks)
        for model in models
    )


def batches(queries: Sequence[Query]) -> Iterator[Sequence[Query]]:
    """So many models at once; fewer where the conditions take many index scans or comparisons."""
    if not queries:
        return
    first = queries[0]
    scans = sum(condition.scans for condition in first.conditions)
    size = MODELS * _FEW_SCANS // max(scans, _FEW_SCANS)
    size = max(1, min(size, first.at_once // first.group))
    for start in range(0, len(queries), size):
        yield queries[start : start + size]


def units(queries: Sequence[Query], parts: Sequence[Scope]) -> list[Unit]:
    """Each model's question in each of the parts, which lie in any one model."""
    return [
        (query, replace(part, model=query.scope.model))
        for part in parts
        for query in queries
        if not part.empty
    ]


@dataclass(slots=True, kw_only=True)
class Found(Progress):
    """What a search has found so far; it has looked everywhere as far as it says."""

    wanted: int
    newest_first: bool
    hits: list[Hit] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many hits the page still takes."""
        return self.wanted - len(self.hits)

    def take(self, hits: Sequence[Hit], scope: Scope) -> None:
        """Keep what all models together have in the scope."""
        best = sorted(hits, key=lambda hit: hit.uid, reverse=self.newest_first)
        self.hits.extend(best[: self.missing])
        self.searched = scope.lo if self.newest_first else UUID(int=scope.hi.int - 1)


async def find_across(
    connection: AsyncConnection,
    queries: Sequence[Query],
    *,
    limit: int,
    deadline: Deadline,
    walk: int = WALK,
    goes_on: bool = False,
) -> Found:
    """Up to `limit` hits in order of time. Raises OutOfTime only when nothing was looked at."""
    newest_first = not queries or queries[0].newest_first
    found = Found(wanted=limit, newest_first=newest_first, deadline=deadline, goes_on=goes_on)
    if not queries or queries[0].nothing or queries[0].scope.empty:
        return found
    first = queries[0]
    parts = await pieces(connection, first.scope, newest_first=first.newest_first)
    try:
        rest = await _walk(connection, queries, parts, found, walk)
        await _follow(connection, queries, rest, found)
    except OutOfTime:
        if found.searched is None:
            raise
        found.out_of_time = True
    return found


async def count_across(
    connection: AsyncConnection, queries: Sequence[Query], *, deadline: Deadline
) -> int:
    """The number of matches in all of them. Raises OutOfTime."""
    if not queries or queries[0].nothing or queries[0].scope.empty:
        return 0
    first, what = queries[0], "count the matches"
    found = await pieces(connection, first.scope, newest_first=True)
    known = await numbers(connection, queries, found, deadline)
    matches = sum(known.values())
    for group in groups(found, first.group):
        for batch in batches(queries):
            left = [unit for unit in units(batch, group) if unit[1] not in known]
            if not left:
                continue
            statement = partial(_counts, left)
            rows = await fetch(connection, statement, deadline, large=first.large, what=what)
            matches += int(rows[0][0])
    return matches


def _counts(asked: Sequence[Unit]) -> Select[Any]:
    together = union_all(*(counted(query, scope) for query, scope in asked)).subquery()
    return select(func.sum(together.c.matches))


async def _walk(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[Scope],
    found: Found,
    walk: int,
) -> Sequence[Scope]:
    """Test inference after inference, as `page` does; the pieces that are left."""
    first, length = queries[0], walk
    if not first.conditions:
        return parts
    while parts and found.missing > 0:
        stride, parts = await _stride(connection, queries, parts, length, found.until)
        hits: list[Hit] = []
        for batch in batches(queries):
            asked = [partial(_tested, *unit, found.missing) for unit in units(batch, [stride])]
            what = "walk in order of time"
            hits += await _fetch(connection, asked, found.until, what, large=first.large)
        found.take(hits, stride)
        if first.led:
            break
        found.came_on = length > walk
        length = min(2 * length, _LONGEST_WALK * walk)
    return parts


async def _stride(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[Scope],
    length: int,
    deadline: Deadline,
) -> tuple[Scope, Sequence[Scope]]:
    """What is walked next, so that of no model more than its share is; and the pieces after it."""
    share = max(length // len(queries), _LEAST_WALK if length >= WALK else 1)
    newest_first = queries[0].newest_first
    run = unbroken(parts)
    here = around(run)
    ends: list[UUID] = []
    for batch in batches(queries):
        lasts = []
        for query, scope in units(batch, [here]):
            uids = select(inference.c.uid).where(scope.of(inference))
            last = uids.order_by(query.order(inference.c.uid)).offset(share - 1).limit(1)
            lasts.append(partial(_named, query, last))
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
    left = [part.clip(*after) for part in parts]
    return stride, [part for part in left if not part.empty]


async def _follow(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[Scope],
    found: Found,
) -> None:
    """Let an index lead: one partition, then two, then more, as long as the page is not full."""
    start, size = 0, 1
    while start < len(parts) and found.missing > 0:
        group = parts[start : start + size]
        share = 1.0 if len(group) == 1 else 0.5
        try:
            await _follow_group(connection, queries, group, found, share=share)
        except OutOfTime:
            # One partition at a time: the nearest ones may still be done in time.
            for part in group:
                if found.missing > 0:
                    await _follow_group(connection, queries, [part], found)
        start, size = start + size, min(2 * size, queries[0].group)


async def _follow_group(
    connection: AsyncConnection,
    queries: Sequence[Query],
    group: Sequence[Scope],
    found: Found,
    *,
    share: float = 1.0,
) -> None:
    """All models in these partitions; models that come later only beyond what was found."""
    hits: list[Hit] = []
    scopes = list(group)
    for batch in batches(queries):
        parts = []
        for query, scope in units(batch, scopes):
            parts.append(partial(_led, query, scope, found.missing))
        if parts:
            first = queries[0]
            what = "let an index lead" if first.led else "read in order of time"
            hits += await _fetch(
                connection, parts, found.until, what, share=share, large=first.large
            )
        hits.sort(key=lambda hit: hit.uid, reverse=found.newest_first)
        del hits[found.missing :]
        if len(hits) == found.missing:
            worst = hits[-1].uid
            bound = (worst, HIGHEST) if found.newest_first else (LOWEST, worst)
            scopes = [scope.clip(*bound) for scope in group]
    found.take(hits, around(group))
    found.came_on = True


def _tested(query: Query, scope: Scope, limit: int) -> Select[Any]:
    return _named(query, ordered(query, walked(query, scope), limit))


def _led(query: Query, scope: Scope, limit: int) -> Select[Any]:
    matches, unique = led(query, scope)
    return _named(query, ordered(query, matches, limit, unique=unique))


def _named(query: Query, found: Select[Any]) -> Select[Any]:
    """A SELECT of uids, with the model beside them."""
    uids = found.subquery()
    return select(literal(query.scope.model, Integer).label("model"), uids.c.uid)


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
