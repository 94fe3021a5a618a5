"""One search: matches in order of time, of one model or of several, and how many match.

First the newest few thousand inferences are scanned and tested, which finds common matches at once
and bounds the cost of rare ones. Then driving indexes are used, one statement for each group of
partitions, until the page is full; a statement reads all models. Its partitions are bounded, so
that planning it is cheap and its locks are few. When time runs out, the page has the matches found
so far, and says how far it searched. A deadline's soft end applies as soon as there is anything to
answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import DateTime, Integer, Select, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.events.event import uid_floor

from .conditions.combination import OfKey
from .deadline import (
    GROUP,
    HIGHEST,
    LOWEST,
    Deadline,
    OutOfTime,
    ScanRange,
    bind_one,
    fetch,
    read_each,
    reads_apart,
    span_around,
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
    iterate_pieces,
    settings_for,
    split_apart,
)
from .matching import (
    Hit,
    Query,
    count_matches,
    find_pieces,
    match_by_scan,
    split_models,
    test_each,
)
from .read import Ahead
from .stored_counts import read_numbers

SCAN = 4_000
_LONGEST_SCAN = 64
# A scan this many times as long as the first costs no more than the two lists of a partition.
_LONGEST_DETOUR = 4
_LEAST_SCAN = 50


@dataclass(slots=True, kw_only=True)
class Search:
    """The matches found so far."""

    connection: AsyncConnection
    query: Query
    limit: int
    deadline: Deadline
    hits: list[Hit] = field(default_factory=list)

    def sort_rows(self, rows: Select[Any]) -> Select[Any]:
        """Return the rows, a uid and perhaps a value, in the order of the search."""
        *_, uid = rows.selected_columns
        return rows.order_by(uid.desc() if self.query.newest_first else uid.asc())

    def select_first(
        self, scan_range: ScanRange, rows: Select[Any], most: int, uids: Sequence[Hit] | None = None
    ) -> Select[Any]:
        """Select the first rows of a range in order, of all its models; see `read_each`."""
        first = self.sort_rows(rows).limit(most)
        if not scan_range.is_of_several:
            return first
        return self.sort_rows(read_each(scan_range, first, uids)).limit(most)

    async def read(
        self,
        pieces: Sequence[DrivingIndex],
        select_rows: Callable[[DrivingIndex], Select[Any]],
        what: str,
        deadline: Deadline,
        *,
        limit: int | None = None,
    ) -> list[tuple[int, Hit]]:
        """Return the hits that are selected of each piece by one statement, with the piece's index.

        Of each piece a uid is selected, behind its model if they are several, and perhaps a value.
        With a `limit` a piece is read only if those before it have fewer rows. Raises OutOfTime.
        """
        found: list[tuple[int, Hit]] = []
        if pieces and await reads_apart(self.connection, pieces[0].scan_range):
            limit = None  # each model has rows of the same piece
        for some in await split_apart(self.connection, pieces):
            rows = await fetch(
                self.connection,
                partial(_unite, some, select_rows, limit),
                deadline,
                large=self.query.large,
                what=what,
                settings=settings_for([piece for _, piece in some]),
            )
            if some[0][1].scan_range.is_of_several:
                found += [(row[0], Hit(*row[1:])) for row in rows]
            else:
                models = [piece.scan_range.model for _, piece in some]
                found += [(some[row[0]][0], Hit(models[row[0]], *row[1:])) for row in rows]
        return found


def _unite(
    pieces: Sequence[tuple[int, DrivingIndex]],
    select_rows: Callable[[DrivingIndex], Select[Any]],
    limit: int | None,
) -> Select[Any]:
    """Each part is planned by its own statistics, and each row names its part."""
    parts = []
    for index, (_, piece) in enumerate(pieces):
        rows = select_rows(piece).subquery()
        parts.append(select(literal(index, Integer).label("part"), *rows.c))
    together = union_all(*parts).subquery() if len(parts) > 1 else parts[0].subquery()
    return select(*together.c).limit(limit)


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

    def choose_first(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the first of these hits, as many as the page still takes."""
        return sorted(hits, key=attrgetter("uid"), reverse=self.query.newest_first)[: self.missing]

    def take(self, hits: Sequence[Hit], scan_range: ScanRange) -> None:
        """Add the first of these hits, which all models have in the range."""
        self.hits.extend(self.choose_first(hits))
        newest_first = self.query.newest_first
        self.searched = scan_range.lo if newest_first else UUID(int=scan_range.hi.int - 1)


async def find_by_time(
    connection: AsyncConnection,
    query: Query,
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
    ahead: Ahead | None = None,
) -> TimeSearch:
    """Find up to `limit` hits in the query's order. `scan`: how many inferences are scanned first.

    `goes_on`: it continues an earlier page. `ahead`: receives the inferences that are read with the
    hits. Raises OutOfTime only if not even the scan came to an end.
    """
    search = TimeSearch(
        connection=connection,
        query=query,
        limit=limit,
        deadline=deadline,
        scan=scan,
        goes_on=goes_on,
        ahead=ahead,
    )
    try:
        await _follow(search, await _scan(search, await find_pieces(connection, query)))
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
    query, length = search.query, search.scan
    if not query.conditions:
        return parts
    # with other conditions, or several models, it is unknown which one is rare: the scan goes on
    is_single = not query.scan_range.is_of_several
    lacking = is_single and len(find_anti_joins(query)) == len(query.conditions)
    while parts and search.missing > 0:
        stride, parts = await _choose_stride(search, parts, length)

        def select_matches(piece: DrivingIndex) -> Select[Any]:
            matches = match_by_scan(query, piece.scan_range)
            return search.select_first(piece.scan_range, matches, search.missing)

        what, pieces = "walk in order of time", [DrivingIndex(stride)]
        found = await search.read(pieces, select_matches, what, search.until)
        search.take([hit for _, hit in found], stride)
        too_few = search.missing * length > _LONGEST_DETOUR * search.scan * len(search.hits)
        if query.is_driven or (lacking and too_few):
            break
        search.came_on = length > search.scan
        length = min(2 * length, _LONGEST_SCAN * search.scan)
    return parts


async def _choose_stride(
    search: TimeSearch, parts: Sequence[ScanRange], length: int
) -> tuple[ScanRange, Sequence[ScanRange]]:
    """Return the next range to scan, with a fair share of each model, and the pieces after it."""
    query = search.query
    models = len(query.scan_range.models)
    share = max(length // models, _LEAST_SCAN if length >= SCAN else 1)
    run = take_unbroken(parts)
    here = span_around(run)

    def select_last(piece: DrivingIndex) -> Select[Any]:
        uids = select(inference.c.uid).where(piece.scan_range.of(inference))
        last = search.sort_rows(uids).limit(1).offset(share - 1)
        selected: Select[Any] = read_each(piece.scan_range, last)
        return selected

    what = "see how far to walk"
    found = await search.read([DrivingIndex(here)], select_last, what, search.until)
    ends = [hit.uid for _, hit in found]
    if not ends:
        return here, parts[len(run) :]
    if query.newest_first:
        edge = max(ends)
        stride, after = here.clip(edge, HIGHEST), (LOWEST, edge)
    else:
        edge = UUID(int=min(ends).int + 1)
        stride, after = here.clip(LOWEST, edge), (edge, HIGHEST)
    rest = [part.clip(*after) for part in parts]
    return stride, [part for part in rest if not part.empty]


async def _follow(search: TimeSearch, parts: Sequence[ScanRange]) -> None:
    """Use driving indexes: one partition, then two, then more, until the page is full."""
    is_apart = await reads_apart(search.connection, search.query.scan_range)
    for group in split_growing(parts, 1 if is_apart else search.query.group):
        try:
            is_read = await _follow_group(search, group)
        except OutOfTime:
            is_read = False  # there may be time for the nearest ones
        for part in () if is_read else group:
            await _follow_group(search, [part])


async def _follow_group(search: TimeSearch, group: Sequence[ScanRange]) -> bool:
    """Read the first hits in these partitions; False: those of several partitions may be wrong."""
    if search.missing <= 0:
        return True
    query = search.query
    deadline = search.until if len(group) == 1 else search.until.part(0.5)
    everything = not (query.conditions or query.marks)
    if search.ahead and everything and not search.hits and len(group) == 1:
        hits: list[Hit] | None = await _read_ahead(search, search.ahead, group[0], deadline)
    else:
        hits = await _read_first(search, group, deadline)
    if hits is None:
        return False
    search.take(hits, span_around(group))
    search.came_on = True
    return True


async def _read_first(
    search: TimeSearch, group: Sequence[ScanRange], deadline: Deadline
) -> list[Hit] | None:
    """Return the first hits, from no more partitions than fill the page.

    None: those of several partitions may be wrong.
    """
    pieces = await _choose_pieces(search, group, deadline)
    if not pieces:
        return []
    found = await _read_pieces(search, pieces, deadline, limit=search.missing)
    hits = [hit for _, hit in found]
    wrong = hits != search.choose_first(hits)
    if not wrong and len(hits) == search.missing:
        # they are empty, or were never read: a later part filled the page
        read = {part for part, _ in found}
        silent = [pieces[part] for part in range(max(read)) if part not in read]
        wrong = bool(silent and await _read_pieces(search, silent, deadline, limit=1))
    # UNION ALL returned its parts in another order, so LIMIT took the wrong rows.
    return None if len(group) > 1 and wrong else hits


async def _choose_pieces(
    search: TimeSearch, ranges: Sequence[ScanRange], deadline: Deadline
) -> list[DrivingIndex]:
    counted = await count_lists(
        search.connection,
        search.query,
        [scan_range for scan_range in ranges if not scan_range.empty],
        deadline,
        most=search.counted,
        alone=True,
        driven_by=search.driven_by,
    )
    pieces = [piece for piece in counted if not piece.empty]
    search.counted, search.driven_by = choose_next_most(pieces), choose_next_driver(counted)
    return pieces


async def _read_pieces(
    search: TimeSearch,
    pieces: Sequence[DrivingIndex],
    deadline: Deadline,
    limit: int | None = None,
) -> list[tuple[int, Hit]]:
    query, most = search.query, search.missing if limit is None else limit

    def select_matches(piece: DrivingIndex) -> Select[Any]:
        return search.select_first(piece.scan_range, build_matches(query, piece), most)

    what = "let an index lead" if query.is_driven else "read in order of time"
    return await search.read(pieces, select_matches, what, deadline, limit=limit)


async def _read_ahead(
    search: TimeSearch, ahead: Ahead, here: ScanRange, deadline: Deadline
) -> list[Hit]:
    """Read the first inferences of the only model in one round trip: the most frequent page."""
    rows = await fetch(
        search.connection,
        ahead.statement(newest_first=search.query.newest_first),
        deadline,
        plain=True,
        parameters={"model": here.model, "lo": here.lo, "hi": here.hi, "most": search.missing},
    )
    return [Hit(here.model, uid) for uid in ahead.take(rows)]


# Counts: partition by partition; in some partitions the count is stored.


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """Count the matches. Raises OutOfTime."""
    matches = 0
    for one in await split_models(connection, query):
        matches += await _count(connection, one, deadline)
    return matches


async def _count(connection: AsyncConnection, query: Query, deadline: Deadline) -> int:
    parts = await find_pieces(connection, query)
    stored = await read_numbers(connection, query, parts, deadline)
    matches = sum(stored.values())
    async for pieces in iterate_pieces(connection, query, parts, deadline, known=stored):
        # each process would have hashes of its own
        workers = 0 if any(piece.joins for piece in pieces) else WORKERS
        [row] = await fetch(
            connection,
            partial(_select_count, query, pieces),
            deadline,
            large=query.large,
            what="count the matches",
            workers=workers,
            settings=JOINING if _find_subtracted(query) else settings_for(pieces),
        )
        # never below zero: in a span that is being dropped the parents are deleted first
        matches += max(0, int(row[0]))
    return matches


def _find_subtracted(query: Query) -> OfKey | None:
    keys = find_anti_joins(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _select_count(query: Query, pieces: Sequence[DrivingIndex]) -> Select[Any]:
    key = _find_subtracted(query)
    if key is None:
        counts = [(piece, count_matches(build_matches(query, piece))) for piece in pieces]
    else:
        counts = [(p, rows) for p in pieces for rows in count_without(query, key, p.scan_range)]
    counted = union_all(*(read_each(p.scan_range, rows) for p, rows in counts)).subquery()
    return select(func.sum(counted.c.matches))


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
    recent = query.scan_range.clip(uid_floor(datetime.now(UTC) - FOLLOWED), HIGHEST)
    parts = await find_pieces(connection, replace(query, scan_range=recent))
    arrivals: list[Arrival] = []
    for part in parts[:GROUP]:
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
