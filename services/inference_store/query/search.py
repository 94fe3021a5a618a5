"""One search: the first matches in order of time, and how many there are, of one model or several.

In order of time the newest few thousand inferences are tested first, which finds common matches at
once and bounds the cost of rare ones; where an index has the matches in order, it is read instead
of all inferences. Then the lists of the conditions are counted over many partitions: a short one is
read whole. What is left is read partition by partition, one first, then more.

When time runs out, a page in order of time has the matches found so far, and says how far it
searched. A deadline's soft end applies as soon as there is anything to answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    DateTime,
    Integer,
    Select,
    false,
    func,
    literal,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.events.event import uid_floor

from .conditions.combination import Found, OfKey
from .conditions.condition import Condition, split_driving
from .cursor import Cursor
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
    split_unbroken,
    take_unbroken,
)
from .filters import typed
from .order import Order
from .plan import (
    FEW,
    SUBTRACTING,
    WORKERS,
    Hit,
    Plan,
    Query,
    build_matches,
    choose_next_most,
    choose_plans,
    count_matches,
    count_without,
    find_anti_joins,
    find_pieces,
    iterate_plans,
    settings_for,
    split_apart,
    split_models,
    test_each,
)
from .read import Ahead
from .stored_counts import read_numbers

SCAN = 1_000
_LONGEST_SCAN = 64
# A scan this many times as long as the first costs no more than the two lists of a partition.
_LONGEST_DETOUR = 4
_LEAST_SCAN = 50
# The seconds that counting a list over many partitions may take: a short one takes a tenth.
_SOON = 0.05
_SOME_HITS = 2  # a scan that found so many has passed no short list
_UNDRIVEN = 4  # times as long are the strides without an index, where there is only the scan


@dataclass(slots=True, kw_only=True)
class Search:
    """The first matches found so far, in the order of time, or of values if there is an `order`."""

    connection: AsyncConnection
    query: Query
    limit: int
    deadline: Deadline
    order: Order | None = None
    after: Cursor | None = None
    """The position in the order of values after which the page begins."""
    scan: int = SCAN
    goes_on: bool = False
    """Whether it continues an earlier page. A short scan is then not enough to answer: pages that
    all ended after one would never come through a large partition.
    """
    ahead: Ahead | None = None
    """The columns to read with the first statement's matches, if it has no condition."""
    hits: list[Hit] = field(default_factory=list)
    came_on: bool = False
    """Whether it came further than the short scan before an index drives."""
    searched: UUID | None = None
    """The uid up to which everything was checked, in order of time."""
    out_of_time: bool = False
    """Whether it stopped there for lack of time."""
    counted: int = FEW
    """The limit for counting the lists of the next partitions."""

    @property
    def descending(self) -> bool:
        """Check whether the last of the order come first."""
        return self.query.newest_first

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

    def sort_hits(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits in the order of the search."""
        key = attrgetter("uid") if self.order is None else attrgetter("value", "uid")
        return sorted(hits, key=key, reverse=self.descending)

    def sort_rows(self, rows: Any) -> Any:
        """Return the rows, which have a `uid` and perhaps a `value`, in the order of the search."""
        names = ("uid",) if self.order is None else ("value", "uid")
        keys = (rows.selected_columns[name] for name in names)
        return rows.order_by(*(key.desc() if self.descending else key for key in keys))

    def select_first(self, scan_range: ScanRange, rows: Select[Any], most: int) -> Select[Any]:
        """Select the first rows of a range in order, of all its models."""
        first: Select[Any] = self.sort_rows(rows).limit(most)
        if scan_range.is_of_several:
            first = self.sort_rows(read_each(scan_range, first)).limit(most)
        return first

    async def read(
        self,
        plans: Sequence[Plan],
        select_rows: Callable[[Plan], Any],
        what: str,
        deadline: Deadline,
    ) -> list[Hit]:
        """Return the hits that are selected of each part, by one statement, in no order.

        Of each part a uid is selected, behind its model if they are several, and perhaps a value.
        Raises OutOfTime.
        """
        found: list[Hit] = []
        for some in await split_apart(self.connection, plans):
            ways = dict.fromkeys(plan.way for plan in some)
            rows = await fetch(
                self.connection,
                partial(_unite, some, select_rows),
                deadline,
                large=self.query.large,
                what=f"{what} ({', '.join(ways)})",
                settings=settings_for(some),
            )
            for row in rows:
                part, values = (row[0], row[1:]) if len(some) > 1 else (0, row)
                here = some[part].scan_range
                own = () if here.is_of_several else (here.model,)
                found.append(Hit(*own, *values))
        return found


def _unite(plans: Sequence[Plan], select_rows: Callable[[Plan], Any]) -> Any:
    """Each part is planned by its own statistics, and each row names its part, if they are many."""
    if len(plans) == 1:
        return select_rows(plans[0])
    parts = []
    for index, plan in enumerate(plans):
        rows = select_rows(plan).subquery()
        parts.append(select(literal(index, Integer).label("part"), *rows.c))
    return union_all(*parts)


# In order of time.


async def find_by_time(
    connection: AsyncConnection,
    query: Query,
    *,
    limit: int,
    deadline: Deadline,
    scan: int = SCAN,
    goes_on: bool = False,
    ahead: Ahead | None = None,
) -> Search:
    """Find up to `limit` hits in the query's order. `scan`: how many inferences are scanned first.

    `goes_on`: it continues an earlier page. `ahead`: receives the inferences that are read with the
    hits. Raises OutOfTime only if not even the scan came to an end.
    """
    search = Search(
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


def _take(search: Search, hits: Sequence[Hit], scan_range: ScanRange) -> None:
    """Add the first of these hits, which all models have in the range."""
    search.hits += search.sort_hits(hits)[: search.missing]
    search.searched = scan_range.lo if search.descending else UUID(int=scan_range.hi.int - 1)


async def _scan(search: Search, parts: Sequence[ScanRange]) -> Sequence[ScanRange]:
    """Test inference after inference, and return the parts not searched yet.

    If no index can drive the query, there is only the scan, in strides that grow: after any of them
    time may run out, and the page has the matches so far. What needs no test, because an index has
    all matches in order, is read over many partitions at once.
    """
    query, size, most, scanned = search.query, 1, GROUP, 0
    shortest = length = search.scan * (1 if query.is_driven else _UNDRIVEN)
    ordered = next(filter(_is_ordered, query.conditions), None)
    is_whole = len(query.conditions) == int(ordered is not None) and not query.marks
    if is_whole:
        most = query.wide
    # with other conditions, or several models, it is unknown which one is rare: the scan goes on
    is_single = not query.scan_range.is_of_several
    lacking = is_single and len(find_anti_joins(query)) == len(query.conditions)
    while parts and search.missing > 0:
        run = take_unbroken(parts, size)
        try:
            if search.ahead and is_whole and not (query.conditions or search.hits):
                run = run[:1]
                stride = await _read_ahead(search, search.ahead, run[0])
            else:
                stride = await _scan_stride(search, run, ordered, None if is_whole else length)
        except OutOfTime:
            if len(run) == 1:
                raise
            size = most = 1  # there may be time for the nearest one
            continue
        parts = _list_rest(parts, stride, newest_first=search.descending)
        size = min(4 * size, most)
        scanned += length
        too_few = search.missing * scanned > _LONGEST_DETOUR * shortest * len(search.hits)
        if not is_whole and too_few and (query.is_driven or lacking):
            break
        search.came_on = is_whole or length > shortest
        length = min(2 * length, _LONGEST_SCAN * shortest)
    return parts


def _is_ordered(condition: Condition) -> bool:
    """Check whether its list is one range of an index, in order of time: a value is equal."""
    match condition:
        case Found(
            (typed.Compared("=", (typed.Metadata() | typed.Property(), typed.Constant())), True),
            scans=1,
        ):
            return True
    return False


def _list_rest(
    parts: Sequence[ScanRange], stride: ScanRange, *, newest_first: bool
) -> list[ScanRange]:
    beyond = (LOWEST, stride.lo) if newest_first else (stride.hi, HIGHEST)
    return [rest for part in parts if not (rest := part.clip(*beyond)).empty]


async def _scan_stride(
    search: Search, run: Sequence[ScanRange], ordered: Condition | None, length: int | None
) -> ScanRange:
    """Take the matches among the next `length` inferences, a fair share of each model, or among
    all (None); return the range that they were in."""
    here, until = span_around(run), search.until
    least = _LEAST_SCAN if length is None or length >= SCAN else 1
    share = None if length is None else max(length // len(here.models), least)
    found = await search.read(
        [Plan(here)],
        lambda plan: _select_stride(search, plan.scan_range, ordered, share),
        "scan in order of time",
        until if len(run) == 1 else until.part(0.5),
    )
    ends = [hit.uid for hit in found if hit.value]
    if ends and search.descending:
        here = here.clip(max(ends), HIGHEST)
    elif ends:
        here = here.clip(LOWEST, UUID(int=min(ends).int + 1))
    hits = [Hit(hit.model, hit.uid) for hit in found if not hit.value]
    _take(search, [hit for hit in hits if here.lo <= hit.uid < here.hi], here)
    return here


def _select_stride(
    search: Search, here: ScanRange, ordered: Condition | None, share: int | None
) -> Any:
    """Select the first matches among as many inferences as the share is, and where these end."""
    entries: Any = select(inference.c.uid).where(here.of(inference))
    if ordered is not None:
        entries = ordered.uids(here)
    [uid] = entries.selected_columns
    others = [one for one in search.query.conditions if one is not ordered]
    matches = entries.add_columns(false().label("is_end"))
    matches = matches.where(*test_each(search.query, others, here, uid, may_hash=False))
    if share is None:
        return search.select_first(here, matches, search.missing)
    last = search.sort_rows(entries).limit(1).offset(share - 1)
    ends = search.sort_rows(read_each(here, last)).limit(1).cte()
    bound = func.coalesce(
        select(ends.c.uid).scalar_subquery(),
        bind_one(here.lo if search.descending else here.hi, UUID_TYPE(as_uuid=True)),
    )
    matches = matches.where(uid >= bound if search.descending else uid <= bound)
    rows = search.select_first(here, matches, search.missing)
    return union_all(rows, select(*ends.c, true()))


async def _follow(search: Search, parts: Sequence[ScanRange]) -> None:
    """Read what the index finds: a short list whole, else one partition, then two, then more, until
    the page is full."""
    query = search.query
    is_apart = await reads_apart(search.connection, query.scan_range)
    lists, _ = split_driving(query.conditions)
    is_cheap = any(one.scans == 1 for one in lists) and not is_apart
    # else the scan has found more than a short list would have there
    may_be_short = is_cheap and len(search.hits) < _SOME_HITS
    for run in split_unbroken(parts, query.wide) if may_be_short else [parts]:
        if may_be_short and search.missing > 0 and await _read_short(search, run):
            continue
        for group in split_growing(run, 1 if is_apart else query.group):
            try:
                await _read_group(search, group)
            except OutOfTime:
                if len(group) == 1:
                    raise
                for part in group:  # there may be time for the nearest ones
                    await _read_group(search, [part])


async def _read_short(search: Search, run: Sequence[ScanRange]) -> bool:
    """Read the hits of several partitions at once; False: no list is short there."""
    here, deadline = span_around(run), search.until.part(0.5)
    how: Any = {"some": FEW, "alone": True, "cheap_only": True}
    try:
        [plan] = await choose_plans(
            search.connection, search.query, [here], deadline.soon(_SOON), **how
        )
        if plan.shortest is None:
            return False
        hits = [] if plan.empty else await _read_plans(search, [plan], deadline)
    except OutOfTime:
        return False
    _take(search, hits, here)
    search.came_on = True
    return True


async def _read_group(search: Search, group: Sequence[ScanRange]) -> None:
    """Read the first hits in these partitions, each by the list that is best there."""
    if search.missing <= 0:
        return
    deadline = search.until if len(group) == 1 else search.until.part(0.5)
    plans = await _choose(search, group, deadline)
    _take(search, await _read_plans(search, plans, deadline), span_around(group))
    search.came_on = True


async def _choose(search: Search, ranges: Sequence[ScanRange], deadline: Deadline) -> list[Plan]:
    query, connection = search.query, search.connection
    if find_anti_joins(query) and not query.scan_range.is_of_several:
        some = await _keep_parts_with_matches(connection, query, ranges, deadline)
        return [Plan(scan_range, anti_join=True) for scan_range in some]
    driving, _ = split_driving(query.conditions)
    # such a list is cheap to read, but not in the order of a page
    by_value = any(isinstance(one, Found) and one.by_value for one in driving)
    how: Any = {"most": search.counted, "alone": by_value}
    plans = await choose_plans(connection, query, ranges, deadline, **how)
    plans = [plan for plan in plans if not plan.empty]
    search.counted = choose_next_most(plans)
    return plans


async def _read_plans(search: Search, plans: Sequence[Plan], deadline: Deadline) -> list[Hit]:
    def select_matches(plan: Plan) -> Select[Any]:
        matches = build_matches(search.query, plan, first=True)
        return search.select_first(plan.scan_range, matches, search.missing)

    return await search.read(plans, select_matches, "let an index lead", deadline)


async def _read_ahead(search: Search, ahead: Ahead, here: ScanRange) -> ScanRange:
    """Read the first inferences of the only model in one round trip: the most frequent page."""
    rows = await fetch(
        search.connection,
        ahead.statement(newest_first=search.descending),
        search.until,
        plain=True,
        parameters={"model": here.model, "lo": here.lo, "hi": here.hi, "most": search.missing},
    )
    _take(search, [Hit(here.model, uid) for uid in ahead.take(rows)], here)
    return here


async def _keep_parts_with_matches(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> Sequence[ScanRange]:
    """Return the parts that have an inference without each of the missing keys."""
    for key in find_anti_joins(query):
        alone = replace(query, conditions=(key,))
        stored = await read_numbers(connection, alone, parts, deadline)
        some = {part for part in parts if stored.get(part, 0) > 0}
        others = [part for part in parts if part not in stored]
        if others:
            rows = await fetch(
                connection,
                partial(_select_lacking, query, key, others),
                deadline,
                what="see where a key is lacking",
                workers=WORKERS,
                settings=SUBTRACTING,
            )
            some |= {others[row.part] for row in rows}
        parts = [part for part in parts if part in some]
    return parts


def _select_lacking(query: Query, key: OfKey, parts: Sequence[ScanRange]) -> Select[Any]:
    counted = [
        counts.add_columns(literal(index, Integer).label("part"))
        for index, part in enumerate(parts)
        for counts in count_without(query, key, part)
    ]
    numbers = union_all(*counted).subquery()
    return select(numbers.c.part).group_by(numbers.c.part).having(func.sum(numbers.c.matches) > 0)


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
    async for plans in iterate_plans(connection, query, parts, deadline, known=stored):
        # each process would have hashes of its own
        workers = 0 if any(plan.joins for plan in plans) else WORKERS
        ways = dict.fromkeys(plan.way for plan in plans)
        [row] = await fetch(
            connection,
            partial(_select_count, query, plans),
            deadline,
            large=query.large,
            what=f"count the matches ({', '.join(ways)})",
            workers=workers,
            settings=SUBTRACTING if _find_subtracted(query) else settings_for(plans),
        )
        # never below zero: in a span that is being dropped the parents are deleted first
        matches += max(0, int(row[0]))
    return matches


def _find_subtracted(query: Query) -> OfKey | None:
    keys = find_anti_joins(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _select_count(query: Query, plans: Sequence[Plan]) -> Select[Any]:
    key = _find_subtracted(query)
    if key is None:
        counts = [(plan, count_matches(build_matches(query, plan))) for plan in plans]
    else:
        counts = [(p, rows) for p in plans for rows in count_without(query, key, p.scan_range)]
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
    tests = test_each(query, query.conditions, part, here.uid, may_hash=False)
    rows = select(here.indexed_at, here.uid).where(part.of(inference), late, *tests)
    return rows.order_by(here.indexed_at.desc(), here.uid.desc()).limit(limit)
