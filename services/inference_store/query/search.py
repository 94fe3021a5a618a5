"""One search: matches in order of time, of one model or of several, and how many match.

First the newest few thousand inferences are scanned and tested, which finds common matches at once
and bounds the cost of rare ones. Then driving indexes are used, one statement for each group of
partitions, until the page is full; of several models, each partition for all of them before the
next. The models and partitions of a statement are bounded, so that planning it is cheap and its
locks are few. When time runs out, the page has the matches found so far, and says how far it
searched. A deadline's soft end applies as soon as there is anything to answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    DateTime,
    Integer,
    Select,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import erasing, inference
from inference_store.inference.events.event import uid_floor

from .conditions.keys import OfKey
from .deadline import (
    GROUP,
    HIGHEST,
    LOWEST,
    Deadline,
    OutOfTime,
    ScanRange,
    bind_one,
    fetch,
    span_around,
    split_groups,
    split_growing,
    take_unbroken,
)
from .driving import (
    FEW,
    JOINING,
    WORKERS,
    DrivingIndex,
    build_matches,
    choose_next_driver,
    choose_next_most,
    count_lists,
    count_without,
    find_anti_joins,
    find_candidates,
    group_by_joins,
    settings_for,
)
from .explain import Building
from .matching import (
    Hit,
    Query,
    count_matches,
    find_pieces,
    match_by_index,
    match_by_scan,
    order_matches,
    test_each,
)
from .read import Ahead
from .stored_counts import read_numbers

SCAN = 4_000
MODELS = 8
_LONGEST_SCAN = 64
# A scan this many times as long as the first costs no more than the two lists of a partition.
_LONGEST_DETOUR = 4
_FEW_SCANS = 4
_LEAST_SCAN = 50
Unit = tuple[Query, ScanRange]
"""A model's query, and the range that it reads."""


@dataclass(slots=True, kw_only=True)
class Search:
    """The matches found so far, of one query of each model."""

    connection: AsyncConnection
    queries: Sequence[Query]
    limit: int
    deadline: Deadline
    hits: list[Hit] = field(default_factory=list)

    @property
    def first(self) -> Query:
        """The first model's query: apart from the models all are the same."""
        return self.queries[0]

    async def read(
        self,
        parts: Sequence[Callable[[], Select[Any]]],
        what: str,
        deadline: Deadline,
        *,
        share: float = 1.0,
        large: bool = True,
    ) -> list[Hit]:
        """Return the hits that these statements select, which run as one. Raises OutOfTime."""
        rows = await fetch(
            self.connection,
            lambda: parts[0]() if len(parts) == 1 else union_all(*(part() for part in parts)),
            deadline,
            large=large and self.first.large,
            share=share,
            what=what,
        )
        return [Hit(*row) for row in rows]


@dataclass(slots=True, kw_only=True)
class TimeSearch(Search):
    """A search in order of time."""

    scan: int
    goes_on: bool
    """Whether it continues an earlier page. A short scan is then not enough to answer: pages that
    all ended after one would never come through a large partition.
    """
    ahead: Ahead | None
    """The columns to read with the first statement's matches, if it has no condition."""
    came_on: bool = False
    """Whether it came further than the short scan before an index drives."""
    searched: UUID | None = None
    """The uid up to which everything was checked."""
    out_of_time: bool = False
    """Whether it stopped there for lack of time."""
    counted: int = FEW
    """The limit for counting the lists of the next partitions."""
    driven_by: int | None = None
    """The index of the list that was very short in the last partitions: it is counted first."""

    @property
    def uids(self) -> list[UUID]:
        """The uids of the hits."""
        return [hit.uid for hit in self.hits]

    @property
    def missing(self) -> int:
        """The number of hits that the page still takes."""
        return self.limit - len(self.hits)

    @property
    def until(self) -> Deadline:
        """The deadline at which to stop: the soft end as soon as there is something to answer."""
        enough = self.came_on or (self.searched is not None and not self.goes_on)
        return self.deadline.early if enough else self.deadline

    def take(self, hits: Sequence[Hit], scan_range: ScanRange) -> None:
        """Add the first of these hits, which all models have in the range."""
        newest_first = self.first.newest_first
        best = sorted(hits, key=attrgetter("uid"), reverse=newest_first)
        self.hits.extend(best[: self.missing])
        self.searched = scan_range.lo if newest_first else UUID(int=scan_range.hi.int - 1)


async def find_by_time(
    connection: AsyncConnection,
    queries: Sequence[Query],
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
    ahead: Ahead | None = None,
) -> TimeSearch:
    """Find up to `limit` hits in the queries' order. `scan`: how many inferences are scanned first.

    `goes_on`: it continues an earlier page. `ahead`: receives the inferences that are read with the
    hits. Raises OutOfTime only if not even the scan came to an end.
    """
    search = TimeSearch(
        connection=connection,
        queries=queries,
        limit=limit,
        deadline=deadline,
        scan=scan,
        goes_on=goes_on,
        ahead=ahead,
    )
    if not queries:
        return search
    parts = await find_pieces(connection, search.first, newest_first=search.first.newest_first)
    try:
        await _follow(search, await _scan(search, parts))
    except OutOfTime:
        if search.searched is None:
            raise
        search.out_of_time = True
    return search


async def _scan(search: TimeSearch, parts: Sequence[ScanRange]) -> Sequence[ScanRange]:
    """Test inference after inference, and return the pieces not yet searched.

    Without conditions nothing is scanned. If no index can drive the query, there is only the scan,
    in strides that grow: after any of them time may run out, and the page has the matches so far.
    """
    first, length = search.first, search.scan
    if not first.conditions:
        return parts
    # with other conditions, or several models, it is unknown which one is rare: the scan goes on
    lacking = len(search.queries) == 1 and len(find_anti_joins(first)) == len(first.conditions)
    while parts and search.missing > 0:
        stride, parts = await _choose_stride(search, parts, length)
        hits: list[Hit] = []
        for batch in split_batches(search.queries):
            selects = [
                partial(_select_scanned, *unit, search.missing)
                for unit in pair_units(batch, [stride])
            ]
            hits += await search.read(selects, "walk in order of time", search.until)
        search.take(hits, stride)
        too_few = search.missing * length > _LONGEST_DETOUR * search.scan * len(search.hits)
        if first.is_driven or (lacking and too_few):
            break
        search.came_on = length > search.scan
        length = min(2 * length, _LONGEST_SCAN * search.scan)
    return parts


async def _choose_stride(
    search: TimeSearch, parts: Sequence[ScanRange], length: int
) -> tuple[ScanRange, Sequence[ScanRange]]:
    """Return the next range to scan, with a fair share of each model, and the pieces after it."""
    share = max(length // len(search.queries), _LEAST_SCAN if length >= SCAN else 1)
    run = take_unbroken(parts)
    here = span_around(run)
    ends: list[UUID] = []
    for batch in split_batches(search.queries):
        lasts = []
        for query, scan_range in pair_units(batch, [here]):
            uids = select(inference.c.uid).where(scan_range.of(inference))
            last = uids.order_by(query.order(inference.c.uid)).offset(share - 1).limit(1)
            lasts.append(partial(add_model, query, last))
        what = "see how far to walk"
        found = await search.read(lasts, what, search.until, large=False)
        ends += [hit.uid for hit in found]
    if not ends:
        return here, parts[len(run) :]
    if search.first.newest_first:
        edge = max(ends)
        stride, after = here.clip(edge, HIGHEST), (LOWEST, edge)
    else:
        edge = UUID(int=min(ends).int + 1)
        stride, after = here.clip(LOWEST, edge), (edge, HIGHEST)
    rest = [part.clip(*after) for part in parts]
    return stride, [part for part in rest if not part.empty]


async def _follow(search: TimeSearch, parts: Sequence[ScanRange]) -> None:
    """Use driving indexes: one partition, then two, then more, until the page is full."""
    for group in split_growing(parts, search.first.group):
        if search.missing <= 0:
            return
        try:
            await _follow_group(search, group, 1.0 if len(group) == 1 else 0.5)
        except OutOfTime:
            # there may be time for the nearest ones
            await _follow_one_by_one(search, group)


async def _follow_one_by_one(search: TimeSearch, group: Sequence[ScanRange]) -> None:
    for part in group:
        if search.missing > 0:
            await _follow_group(search, [part], 1.0)


async def _follow_group(search: TimeSearch, group: Sequence[ScanRange], share: float) -> None:
    if len(search.queries) > 1:
        hits: list[Hit] | None = await _read_of_several(search, group, share)
    else:
        hits = await _read_of_one(search, group, share)
    if hits is None:
        await _follow_one_by_one(search, group)
        return
    search.take(hits, span_around(group))
    search.came_on = True


async def _read_of_several(
    search: TimeSearch, group: Sequence[ScanRange], share: float
) -> list[Hit]:
    """Return the first hits in these partitions; later models only beyond what was found."""
    hits: list[Hit] = []
    scopes, first = list(group), search.first
    what = "let an index lead" if first.is_driven else "read in order of time"
    for batch in split_batches(search.queries):
        parts = [
            partial(_select_driven, query, scan_range, search.missing)
            for query, scan_range in pair_units(batch, scopes)
        ]
        if parts:
            hits += await search.read(parts, what, search.until, share=share)
        hits.sort(key=attrgetter("uid"), reverse=first.newest_first)
        del hits[search.missing :]
        if len(hits) == search.missing:
            worst = hits[-1].uid
            bound = (worst, HIGHEST) if first.newest_first else (LOWEST, worst)
            scopes = [scan_range.clip(*bound) for scan_range in group]
    return hits


async def _read_of_one(
    search: TimeSearch, group: Sequence[ScanRange], share: float
) -> list[Hit] | None:
    """Return the first hits of the only model; None if those of several partitions may be wrong."""
    query, deadline = search.first, search.until
    counted = await count_lists(
        search.connection,
        query,
        group,
        deadline,
        share=share,
        most=search.counted,
        alone=True,
        driven_by=search.driven_by,
    )
    pieces = [piece for piece in counted if not piece.empty]
    search.counted, search.driven_by = choose_next_most(pieces), choose_next_driver(counted)
    if not pieces:
        return []
    # only with the first statement, which may take all of the time
    ahead = None if search.hits else search.ahead
    rows = await _read(search, pieces, search.missing, deadline, share, ahead)
    uids = [row[0] for row in rows]
    wrong = uids != sorted(uids, reverse=query.newest_first)
    if not wrong and len(rows) == search.missing:
        silent = [pieces[index] for index in find_silent([row[1] for row in rows])]
        wrong = bool(silent and await _read(search, silent, 1, deadline, share))
    if len(group) > 1 and wrong:
        # UNION ALL returned its parts in another order, so LIMIT took the wrong rows.
        return None
    return [Hit(query.scan_range.model, uid) for uid in uids]


async def _read(  # noqa: PLR0917
    search: TimeSearch,
    group: Sequence[DrivingIndex],
    limit: int,
    deadline: Deadline,
    share: float,
    ahead: Ahead | None = None,
) -> Sequence[Any]:
    """Return rows of a uid, and of the index of its piece."""
    query = search.first
    building: Building = partial(_union, query, group, limit)
    parameters: dict[str, Any] | None = None
    everything = len(group) == 1 and not query.conditions and not query.marks
    if everything:
        here, newest_first = group[0].scan_range, query.newest_first
        building = _select_everything(newest_first)
        if ahead:
            building = ahead.statement(newest_first=newest_first)
        parameters = {"model": here.model, "lo": here.lo, "hi": here.hi, "most": limit}
    rows = await fetch(
        search.connection,
        building,
        deadline,
        large=query.large,
        share=share,
        what="let an index lead",
        plain=everything,
        settings=settings_for(group),
        parameters=parameters,
    )
    return [(uid, 0) for uid in ahead.take(rows)] if everything and ahead else rows


@cache
def _select_everything(newest_first: bool) -> PreparedStatement:
    # the statement of `_union` for one piece without conditions: the most frequent page
    here = inference.c
    lo, hi = (bindparam(name, type_=here.uid.type) for name in ("lo", "hi"))
    where = (here.model == bindparam("model", type_=here.model.type), here.uid >= lo, here.uid < hi)
    uids = select(here.uid, literal_column("0").label("part")).where(*where)
    order = here.uid.desc() if newest_first else here.uid
    return PreparedStatement(uids.order_by(order).limit(bindparam("most", type_=Integer())))


def find_silent(parts: Sequence[int]) -> list[int]:
    """Return the parts without rows before the last row's part, if the rows fill a page.

    They are empty, or were never read: a later part filled the page.
    """
    return [part for part in range(parts[-1]) if part not in parts] if parts else []


def _union(query: Query, group: Sequence[DrivingIndex], limit: int) -> Select[Any]:
    """Select one ordered, limited part for each partition: each is planned by its own statistics.

    A part runs only if those before it did not fill the page. Each row names its part.
    """
    parts = []
    for index, piece in enumerate(group):
        uids = order_matches(query, build_matches(query, piece), limit).subquery()
        parts.append(select(uids.c.uid, literal(index, Integer).label("part")))
    together = union_all(*parts).subquery() if len(parts) > 1 else parts[0].subquery()
    return select(together.c.uid, together.c.part).limit(limit)


def _select_scanned(query: Query, scan_range: ScanRange, limit: int) -> Select[Any]:
    return add_model(query, order_matches(query, match_by_scan(query, scan_range), limit))


def _select_driven(query: Query, scan_range: ScanRange, limit: int) -> Select[Any]:
    return add_model(query, order_matches(query, match_by_index(query, scan_range), limit))


def add_model(query: Query, uids_of_model: Select[Any]) -> Select[Any]:
    """Select the uids with their model, as `Search.read` takes them."""
    uids = uids_of_model.subquery()
    return select(literal(query.scan_range.model, Integer).label("model"), uids.c.uid)


# Several models, and their parts.


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


def iterate_units(queries: Sequence[Query], parts: Sequence[ScanRange]) -> Iterator[Sequence[Unit]]:
    """Yield what one statement searches: a few models in a few partitions."""
    for group in split_groups(parts, queries[0].group):
        for batch in split_batches(queries):
            yield pair_units(batch, group)


def pair_units(queries: Sequence[Query], parts: Sequence[ScanRange]) -> list[Unit]:
    """Return each model's query in each of the parts, which are ranges of any one model."""
    return [
        (query, replace(part, model=query.scan_range.model))
        for part in parts
        for query in queries
        if not part.empty
    ]


# Counts: partition by partition; in some partitions the count is stored.


async def count(
    connection: AsyncConnection, queries: Sequence[Query], *, deadline: Deadline
) -> int:
    """Count the matches, of one query of each model. Raises OutOfTime."""
    if not queries:
        return 0
    first = queries[0]
    parts = await find_pieces(connection, first, newest_first=True)
    stored = await read_numbers(connection, queries, parts, deadline)
    adding = partial(_add_up, connection, large=first.large, deadline=deadline)
    matches = sum(stored.values())
    if len(queries) == 1:
        for group in split_groups([part for part in parts if part not in stored], first.group):
            for pieces in group_by_joins(await find_candidates(connection, first, group, deadline)):
                matches += await adding(
                    [partial(_select_piece_counts, first, piece) for piece in pieces],
                    # each process would have hashes of its own
                    workers=0 if any(piece.joins for piece in pieces) else WORKERS,
                    settings=JOINING if _find_subtracted(first) else settings_for(pieces),
                )
        return matches
    for units in iterate_units(queries, parts):
        counts = [partial(_select_unit_count, unit) for unit in units if unit[1] not in stored]
        if counts:
            matches += await adding(counts)
    return matches


async def _add_up(
    connection: AsyncConnection, counts: Sequence[Callable[[], list[Select[Any]]]], **how: Any
) -> int:
    """Return the sum of what these select, which is never below zero: in a span that is being
    dropped the parents are deleted first."""

    def build() -> Select[Any]:
        counted = union_all(*(select for count in counts for select in count())).subquery()
        return select(func.sum(counted.c.matches))

    [row] = await fetch(connection, build, what="count the matches", **how)
    return max(0, int(row[0]))


def _find_subtracted(query: Query) -> OfKey | None:
    keys = find_anti_joins(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _select_piece_counts(query: Query, piece: DrivingIndex) -> list[Select[Any]]:
    key = _find_subtracted(query)
    if key is not None:
        return count_without(query, key, piece.scan_range)
    return [count_matches(build_matches(query, piece))]


def _select_unit_count(unit: Unit) -> list[Select[Any]]:
    return [count_matches(match_by_index(*unit))]


FOLLOWED: Final = timedelta(days=1)
"""Older inferences are not followed: their partitions would have to be searched too."""


class Arrival(NamedTuple):
    """An inference, and the time at which it was indexed."""

    indexed_at: datetime
    uid: UUID


async def find_arrivals(
    connection: AsyncConnection, query: Query, since: datetime, *, limit: int, deadline: Deadline
) -> list[Arrival]:
    """Return the last matches that were indexed after `since`, in the order of their arrival.

    Raises OutOfTime.
    """
    recent = uid_floor(datetime.now(UTC) - FOLLOWED)
    parts = await find_pieces(connection, query, newest_first=True)
    recent_parts = [
        recent_part for part in parts if not (recent_part := part.clip(recent, HIGHEST)).empty
    ]
    arrivals: list[Arrival] = []
    for part in recent_parts[:GROUP]:
        statement = partial(_select_arrivals, query, part, since, limit)
        rows: Sequence[Any] = await fetch(connection, statement, deadline, large=query.large)
        arrivals += [Arrival(row[0], row[1]) for row in rows]
    return sorted(arrivals, key=attrgetter("indexed_at", "uid"))[-limit:]


def _select_arrivals(query: Query, part: ScanRange, since: datetime, limit: int) -> Select[Any]:
    here = inference.c
    late = here.indexed_at > bind_one(since, DateTime(timezone=True))
    tests = test_each(query, query.conditions, part, here.uid)
    rows = select(here.indexed_at, here.uid).where(part.of(inference), late, *tests)
    return rows.order_by(here.indexed_at.desc(), here.uid.desc()).limit(limit)
