"""A page of matches in order of time.

First the newest few thousand inferences are scanned and tested, which finds common matches at once
and bounds the cost of rare ones. Then driving indexes are used, one statement for each group of
partitions, until the page is full. When time runs out, the page has the matches found so far, and
says how far it searched. A deadline's soft end applies as soon as there is anything to answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    CompoundSelect,
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
from inference_store.inference.events.uid import uid_floor

from .conditions import OfKey
from .deadline import Deadline, OutOfTime, fetch
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
    Query,
    count_matches,
    find_pieces,
    match_by_index,
    match_by_scan,
    order_matches,
    test_each,
)
from .read import Ahead
from .scan_range import (
    GROUP,
    HIGHEST,
    LOWEST,
    ScanRange,
    bind_one,
    find_pieces_of,
    span_around,
    split_groups,
    split_growing,
    take_unbroken,
)
from .stored_counts import read_numbers


class Hit(NamedTuple):
    """One inference. `value`: None in order of time, and if it has no value to be sorted by."""

    model: int
    uid: UUID
    value: Any = None


@dataclass(slots=True, kw_only=True)
class Progress:
    """`searched`: the uid up to which everything was checked; `out_of_time`: it stopped there."""

    deadline: Deadline
    goes_on: bool = False
    """Whether it continues an earlier page. A short walk is then not enough to answer: pages that
    all ended after one would never come through a large partition.
    """
    came_on: bool = False
    """Whether it came further than the short walk before an index drives."""
    searched: UUID | None = None
    out_of_time: bool = False

    @property
    def until(self) -> Deadline:
        """The deadline at which to stop: the soft end as soon as there is something to answer."""
        enough = self.came_on or (self.searched is not None and not self.goes_on)
        return self.deadline.early if enough else self.deadline


SCAN = 4_000
_LONGEST_SCAN = 64
# A scan this many times as long as the first costs no more than the two lists of a partition.
_LONGEST_DETOUR = 4


@dataclass(slots=True, kw_only=True)
class PageSearch(Progress):
    """The matches that a search has found so far."""

    limit: int
    scan: int = SCAN
    uids: list[UUID] = field(default_factory=list)
    counted: int = FEW
    """The limit for counting the lists of the next partitions."""
    driven_by: int | None = None
    """The index of the list that was very short in the last partitions: it is counted first."""
    ahead: Ahead | None = None
    """The columns to read with the first statement's matches, if it has no condition."""

    @property
    def missing(self) -> int:
        """The number of uids that the page still takes."""
        return self.limit - len(self.uids)


async def find_by_time(
    connection: AsyncConnection,
    query: Query,
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
    ahead: Ahead | None = None,
) -> PageSearch:
    """Find up to `limit` uids in the query's order. `scan`: the number of inferences scanned first.

    `goes_on`: it continues an earlier page. `ahead`: receives the inferences that are read with the
    uids. Raises OutOfTime only if not even the scan came to an end.
    """
    search = PageSearch(limit=limit, scan=scan, deadline=deadline, goes_on=goes_on, ahead=ahead)
    if query.nothing or query.scan_range.empty:
        return search
    parts = await find_pieces(connection, query, newest_first=query.newest_first)
    try:
        rest = await _scan(connection, query, parts, search)
        await _follow(connection, query, rest, search)
    except OutOfTime:
        if search.searched is None:
            raise
        search.out_of_time = True
    return search


async def _scan(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], search: PageSearch
) -> Sequence[ScanRange]:
    """Test inference after inference, and return the pieces not yet searched.

    Without conditions nothing is scanned. If no index can drive the query, there is only the scan,
    in strides that grow: after any of them time may run out, and the page has the matches so far.
    """
    if not query.conditions:
        return parts
    length = search.scan
    while parts and search.missing > 0:
        run = take_unbroken(parts)
        end = await _find_end_of_scan(connection, query, span_around(run), length, search.until)
        stride, parts = _split(query, parts, run, end)
        statement = partial(_select_stride, query, stride, search.missing)
        rows = await fetch(connection, statement, search.until, large=query.large)
        _take(search, query, stride, rows)
        # with other conditions it is unknown which one is rare: the scan goes on
        alone = 0 < len(find_anti_joins(query)) == len(query.conditions)
        if query.is_driven or (alone and _too_few(search, length)):
            break
        search.came_on = length > search.scan
        length = min(2 * length, _LONGEST_SCAN * search.scan)
    return parts


def _select_stride(query: Query, stride: ScanRange, limit: int) -> Select[Any]:
    return order_matches(query, match_by_scan(query, stride), limit)


def _too_few(search: PageSearch, scanned: int) -> bool:
    """Check whether matches are so rare that a full page would take too long a scan."""
    return search.missing * scanned > _LONGEST_DETOUR * search.scan * len(search.uids)


async def _find_end_of_scan(
    connection: AsyncConnection,
    query: Query,
    scan_range: ScanRange,
    length: int,
    deadline: Deadline,
) -> UUID | None:
    """Return the last uid of a scan of that length; None: the range holds fewer."""
    last = (
        select(inference.c.uid)
        .where(scan_range.of(inference))
        .order_by(query.order(inference.c.uid))
        .offset(length - 1)
        .limit(1)
    )
    rows = await fetch(connection, last, deadline)
    return rows[0][0] if rows else None


def _split(
    query: Query, parts: Sequence[ScanRange], run: Sequence[ScanRange], end: UUID | None
) -> tuple[ScanRange, Sequence[ScanRange]]:
    """Return the stride through the run up to and including `end`, and the pieces after it."""
    here = span_around(run)
    if end is None:
        return here, parts[len(run) :]
    if query.newest_first:
        stride, after = here.clip(end, here.hi), (LOWEST, end)
    else:
        stride, after = here.clip(here.lo, _next_uid(end)), (_next_uid(end), HIGHEST)
    rest = [part.clip(*after) for part in parts]
    return stride, [part for part in rest if not part.empty]


def _next_uid(uid: UUID) -> UUID:
    return UUID(int=uid.int + 1)


async def _follow(
    connection: AsyncConnection,
    query: Query,
    parts: Sequence[ScanRange],
    search: PageSearch,
) -> None:
    for group in split_growing(parts, query.group):
        if search.missing <= 0:
            return
        share = 1.0 if len(group) == 1 else 0.5
        try:
            await _follow_group(connection, query, group, search, share=share)
        except OutOfTime:
            # One partition at a time: there may be time for the nearest ones.
            for part in group:
                if search.missing > 0:
                    await _follow_group(connection, query, [part], search)


async def _follow_group(
    connection: AsyncConnection,
    query: Query,
    group: Sequence[ScanRange],
    search: PageSearch,
    *,
    share: float = 1.0,
) -> None:
    deadline = search.until
    counted = await count_lists(
        connection,
        query,
        group,
        deadline,
        share=share,
        most=search.counted,
        alone=True,
        driven_by=search.driven_by,
    )
    pieces_left = [piece for piece in counted if not piece.empty]
    search.counted, search.driven_by = choose_next_most(pieces_left), choose_next_driver(counted)
    rows: Sequence[Any] = ()
    wrong = False
    if pieces_left:
        # only with the first statement, which may take all of the time
        read = None if search.uids else search.ahead
        rows = await _read(connection, query, pieces_left, search.missing, deadline, share, read)
        uids = [row[0] for row in rows]
        wrong = uids != sorted(uids, reverse=query.newest_first)
        if not wrong and len(rows) == search.missing:
            silent = [pieces_left[index] for index in find_silent([row[1] for row in rows])]
            wrong = bool(silent and await _read(connection, query, silent, 1, deadline, share))
    if len(group) > 1 and wrong:
        # UNION ALL returned its parts in another order, so LIMIT took the wrong rows.
        for part in group:
            if search.missing > 0:
                await _follow_group(connection, query, [part], search)
        return
    _take(search, query, span_around(group), rows)
    search.came_on = True


async def _read(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    group: Sequence[DrivingIndex],
    limit: int,
    deadline: Deadline,
    share: float,
    ahead: Ahead | None = None,
) -> Sequence[Any]:
    """Return rows of a uid, and of the index of its piece."""
    building: Building = partial(_union, query, group, limit)
    parameters: dict[str, Any] | None = None
    everything = len(group) == 1 and not query.conditions and not query.marks
    if everything:
        scan_range = group[0].scan_range
        newest_first = query.newest_first
        building = (
            ahead.statement(newest_first=newest_first)
            if ahead
            else _select_everything(newest_first)
        )
        parameters = {
            "model": scan_range.model,
            "lo": scan_range.lo,
            "hi": scan_range.hi,
            "most": limit,
        }
    rows = await fetch(
        connection,
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
    """Build the statement of `_union` for one piece without conditions: the most frequent page."""
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
        matches, unique = build_matches(query, piece)
        uids = order_matches(query, matches, limit, unique=unique).subquery()
        parts.append(select(uids.c.uid, literal(index, Integer).label("part")))
    together = union_all(*parts).subquery() if len(parts) > 1 else parts[0].subquery()
    return select(together.c.uid, together.c.part).limit(limit)


def _take(search: PageSearch, query: Query, scan_range: ScanRange, rows: Sequence[Any]) -> None:
    """Store the matches of the range, and how far the search came."""
    search.uids.extend(row[0] for row in rows)
    search.searched = scan_range.lo if query.newest_first else UUID(int=scan_range.hi.int - 1)


MODELS = 8
_FEW_SCANS = 4
_LEAST_SCAN = 50
_LONGEST_SCAN_DUP = 64
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
        rest = await _scan_across(connection, queries, parts, search, scan)
        await _follow_across(connection, queries, rest, search)
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


async def _scan_across(
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
        length = min(2 * length, _LONGEST_SCAN_DUP * scan)
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


async def _follow_across(
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
            await _follow_group_across(connection, queries, group, search, share=share)
        except OutOfTime:
            # One partition at a time: the nearest ones may still be done in time.
            for part in group:
                if search.missing > 0:
                    await _follow_group_across(connection, queries, [part], search)
        start, size = start + size, min(2 * size, queries[0].group)


async def _follow_group_across(
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


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """Count the matches. Raises OutOfTime."""
    if query.nothing or query.scan_range.empty:
        return 0
    parts = await find_pieces(connection, query, newest_first=True)
    stored_numbers = await read_numbers(connection, [query], parts, deadline)
    matches = sum(stored_numbers.values())
    for group in split_groups([part for part in parts if part not in stored_numbers], query.group):
        for pieces in group_by_joins(await find_candidates(connection, query, group, deadline)):
            matches += await _sum_pieces(connection, query, pieces, deadline)
    return matches


async def _sum_pieces(
    connection: AsyncConnection, query: Query, pieces: Sequence[DrivingIndex], deadline: Deadline
) -> int:
    settings, workers = settings_for(pieces), WORKERS
    if any(piece.joins for piece in pieces):
        workers = 0  # each process would have hashes of its own
    elif _find_subtracted(query):
        settings = JOINING
    rows = await fetch(
        connection,
        partial(_select_sum, query, pieces),
        deadline,
        large=query.large,
        workers=workers,
        settings=settings,
    )
    # never below zero: in a span that is being dropped the parents are deleted first
    return max(0, int(rows[0][0]))


def _select_sum(query: Query, pieces: Sequence[DrivingIndex]) -> Select[Any]:
    counted = union_all(*(part for piece in pieces for part in _select_piece_counts(query, piece)))
    return select(func.sum(counted.subquery().c.matches))


def _find_subtracted(query: Query) -> OfKey | None:
    """Return the one condition, if inferences that do not satisfy it are counted and subtracted."""
    keys = find_anti_joins(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _select_piece_counts(query: Query, piece: DrivingIndex) -> list[Select[Any]]:
    """Select numbers whose sum is how many match."""
    key = _find_subtracted(query)
    if key is not None:
        return count_without(query, key, piece.scan_range)
    matches, unique = build_matches(query, piece)
    rows = (matches if unique else matches.distinct()).subquery()
    return [select(func.count().label("matches")).select_from(rows)]


__all__ = ["OutOfTime", "count"]


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
    if query.nothing:
        return []
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
