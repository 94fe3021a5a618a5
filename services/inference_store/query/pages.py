"""Pages, in order of time or of values, with the cursors that continue them, and neighbours.

In the order of values there are three ways. *Few*: a short list is looked up and sorted. *Walk*:
the order's own index is read from the page's beginning, and each inference is tested. *Sort*: all
matches of an index, or all inferences, are sorted. Every partition returns its first rows, and they
are merged: rows after a full page are not read. Inferences without a value come last, in order of
time. Such a page is partial only if it has all hits with a value, and time ran out among those
without: if time runs out earlier, the order of the hits is not certain.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Select, any_, select, tuple_
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference, prediction
from inference_store.inference.errors import NotFound
from inference_store.inference.events.event import received_at_of

from . import cursor as cursors
from .conditions import Condition
from .cursor import Cursor
from .deadline import (
    EACH_UID,
    HIGHEST,
    LOWEST,
    Deadline,
    OutOfTime,
    ScanRange,
    bind_many,
    bind_one,
    fetch,
    read_each,
    reads_apart,
    span_around,
    split_groups,
    split_unbroken,
    test_unmarked,
)
from .explain import record_form
from .order import MissingValue, Order, Rows, Sort
from .plan import (
    Hit,
    Plan,
    Query,
    build_matches,
    choose_plans,
    find_pieces,
    iterate_plans,
    mark_short,
)
from .read import Inference, make_ahead
from .search import Search, find_by_time

FEW_SORTED = 4_000
Tests: TypeAlias = Callable[[Plan, ColumnElement[Any]], list[ColumnElement[bool]]]
"""Returns the tests that an inference of a part, with this uid, matches."""


class OnlyWithValue(OutOfTime):
    """Time ran out among inferences without a value; `hits`: all hits of the page that have one."""

    def __init__(self, hits: Sequence[Hit]) -> None:
        super().__init__()
        self.hits = hits


async def find_sorted(
    connection: AsyncConnection,
    query: Query,
    order: Order,
    *,
    limit: int,
    deadline: Deadline,
    after: Cursor | None = None,
    few: int = FEW_SORTED,
    backwards: bool = False,
) -> list[Hit]:
    """Find up to `limit` hits in that order, beyond `after`. Raises OutOfTime, OnlyWithValue.

    `few`: the length of a list that is looked up. `backwards`: from the order's end to its
    beginning; of several values an inference is at the one that the order takes.
    """
    lacking = after if after is not None and after.value is None else None
    search = Search(
        connection=connection,
        query=replace(query, newest_first=order.descending != backwards),
        limit=limit,
        deadline=deadline,
        order=order,
        after=after if lacking is None else None,
    )
    last = await _find_without_value(search, order, lacking) if backwards and lacking else []
    search.limit -= len(last)
    if search.limit and (backwards or lacking is None):
        await _find_with_value(search, order, await find_pieces(connection, query), few)
    hits = [*last, *search.hits]
    if search.missing > 0 and not (order.always or backwards):
        try:
            hits += await _find_without_value(search, order, lacking)
        except OutOfTime:
            if not hits:
                raise
            raise OnlyWithValue(hits) from None
    return hits


async def _find_with_value(
    search: Search, order: Order, parts: Sequence[ScanRange], few: int
) -> None:
    query = search.query
    short = await _choose_short(search, parts, few) if query.is_driven else None
    if short is not None:
        record_form("few: the matches were looked up and sorted")

        def test_short(plan: Plan, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
            return [uid == mark_short(build_matches(query, plan), "found").c.uid]

        await _merge(search, order, short, test_short, "look up and sort", search.deadline)
        return
    if order.is_scannable:
        try:
            record_form("walk: the order's index was walked, what it named was tested")
            await _walk(search, order, parts, "walk the order", search.deadline.part(0.5))
        except OutOfTime:
            if not query.is_driven:
                raise
            search.hits = []
        else:
            return
    record_form("sort: all matches were sorted")
    if not query.is_driven:
        await _walk(search, order, parts, "sort the matches", search.deadline)
        return

    def test_matches(plan: Plan, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        return [uid.in_(build_matches(query, plan))]

    async for plans in iterate_plans(search.connection, query, parts, search.deadline):
        await _merge(search, order, plans, test_matches, "sort the matches", search.deadline)


async def _choose_short(
    search: Search, parts: Sequence[ScanRange], most: int
) -> Sequence[Plan] | None:
    """Return the plans of runs of partitions in each of which a list is short; None if one is not,
    or it takes too long to see."""
    plans: list[Plan] = []
    query, deadline = search.query, search.deadline.part(0.25)
    how: Any = {"most": most, "some": most, "alone": True}
    try:
        for run in split_unbroken(parts, query.wide):
            plans += await choose_plans(
                search.connection, query, [span_around(run)], deadline, **how
            )
            if plans[-1].shortest is None:
                return None
    except OutOfTime:
        return None
    return [plan for plan in plans if not plan.empty]


async def _walk(
    search: Search, order: Order, parts: Sequence[ScanRange], what: str, deadline: Deadline
) -> None:
    query = search.query

    def test_one(plan: Plan, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        scan_range = plan.scan_range
        tests = [condition.holds(scan_range, uid) for condition in query.conditions]
        return [*tests, test_unmarked(scan_range, uid)] if query.marks else tests

    for group in split_groups(parts, query.group):
        plans = [Plan(scan_range) for scan_range in group]
        await _merge(search, order, plans, test_one, what, deadline)


async def _merge(  # noqa: PLR0917
    search: Search,
    order: Order,
    plans: Sequence[Plan],
    tested: Tests,
    what: str,
    deadline: Deadline,
) -> None:
    """Merge the first hits of these parts with the others, and drop those beyond the page."""
    worst = search.hits[-1] if search.missing <= 0 else None

    def select_first(plan: Plan) -> Select[Any]:
        rows = order.rows(plan.scan_range)
        matches = select(rows.uid.label("uid"), rows.value.label("value"))
        matches = matches.where(*rows.where, *tested(plan, rows.uid))
        if search.after is not None:
            matches = matches.where(_test_beyond(search, order, rows, search.after, after=True))
        if worst is not None:
            matches = matches.where(_test_beyond(search, order, rows, worst, after=False))
        return search.select_first(plan.scan_range, matches, search.limit)

    found = await search.read(plans, select_first, what, deadline)
    both = [*search.hits, *(hit._replace(value=add_time_zone(hit.value)) for hit in found)]
    search.hits = search.sort_hits(both)[: search.limit]


def _test_beyond(
    search: Search, order: Order, rows: Rows, position: Hit | Cursor, *, after: bool
) -> ColumnElement[bool]:
    """Test that a row comes after a position in the order, or before it."""
    bound = tuple_(
        bind_one(position.value, order.type), bind_one(position.uid, inference.c.uid.type)
    )
    row = tuple_(rows.value, rows.uid)
    return row < bound if after == search.descending else row > bound


def add_time_zone(value: Any) -> Any:
    """Add the time zone to the first and the last instant: the driver returns them without one."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else value


async def _find_without_value(search: Search, order: Order, after: Cursor | None) -> list[Hit]:
    query, lacks = search.query, MissingValue(order, drives=not search.query.is_driven)
    query = replace(query, conditions=(*query.conditions, lacks))
    if after is not None:
        query = query.after(after.uid)
    how: Any = {"limit": search.missing, "deadline": search.deadline}
    found = await find_by_time(search.connection, query, **how)
    if found.out_of_time:
        raise OutOfTime
    return found.hits


@dataclass(frozen=True, slots=True)
class Page:
    """The hits of a page, and the cursor of the next one."""

    hits: Sequence[Hit]
    next: str | None = None
    read: Mapping[UUID, Inference] = field(default_factory=dict)
    """The inferences that were read with the hits: all are of one model."""
    searched: UUID | None = None
    """The uid up to which it searched before time ran out."""
    matched: Collection[tuple[UUID, int]] | None = None
    """The uids and ordinals of the predictions that the filter asks for, if it asks for any."""

    @property
    def searched_back_to(self) -> datetime | None:
        """The time down to which it searched before time ran out."""
        return None if self.searched is None else received_at_of(self.searched)


async def find_page(
    connection: AsyncConnection,
    query: Query,
    sort: Sort,
    *,
    fingerprint: bytes,
    cursor: str | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None = None,
) -> Page:
    """Find a page. Raises OutOfTime, InvalidCursor.

    `include`: the parts to show with the hits, if they may be read together. `fingerprint`: of the
    request; a cursor of another one is refused. The deadline's soft end applies in order of time,
    because such a page may say how far back it has searched.
    """
    sort = sort.asking(query.wanted)
    order, after = sort.order, None
    if cursor is not None:
        kind, type_ = (None, None) if order is None else (order.kind, order.type)
        after = cursors.decode(fingerprint, cursor, kind, type_)
    if order is None:
        page = await _find_by_time(connection, query, after, limit + 1, deadline, include)
    else:
        try:
            page = Page(
                await find_sorted(
                    connection, query, order, limit=limit + 1, deadline=deadline.whole, after=after
                )
            )
        except OnlyWithValue as some:
            return Page(some.hits, make_cursor(sort, fingerprint, some.hits[-1]))
    if page.searched is not None:
        return replace(page, next=cursors.encode(fingerprint, Cursor(page.searched)))
    if len(page.hits) <= limit:
        return page
    following = make_cursor(sort, fingerprint, page.hits[limit - 1])
    return replace(page, hits=page.hits[:limit], next=following)


async def find_matched(
    connection: AsyncConnection, query: Query, hits: Sequence[Hit], deadline: Deadline
) -> set[tuple[UUID, int]] | None:
    """Return the uids and ordinals of the predictions of these hits that a filter asks for; None if
    it asks for none. Raises OutOfTime."""
    if query.wanted is None:
        return None
    matched: set[tuple[UUID, int]] = set()
    is_apart = await reads_apart(connection, query.scan_range)
    for scan_range in query.scan_range.split() if is_apart else [query.scan_range]:
        some = [hit for hit in hits if not is_apart or hit.model == scan_range.model]
        if some:
            statement = partial(_select_matched, scan_range, query.wanted, some)
            what = "see which predictions match"
            rows = await fetch(connection, statement, deadline, large=query.large, what=what)
            matched |= {(row.uid, row.ordinal) for row in rows}
    return matched


def _select_matched(scan_range: ScanRange, wanted: Condition, hits: Sequence[Hit]) -> Select[Any]:
    row = prediction.alias()
    listed = any_(bind_many([hit.uid for hit in hits], UUID_TYPE(as_uuid=True)))
    uid = EACH_UID if scan_range.is_of_several else listed
    # by the list too: it says beforehand which partitions are read
    here = scan_range.of(row), row.c.uid == uid, row.c.uid == listed
    rows = select(row.c.uid, row.c.ordinal).where(*here)
    matched = rows.where(wanted.holds(scan_range, row.c.uid))
    selected: Select[Any] = read_each(scan_range, matched, hits)
    return selected


def describe_narrowing(sort: Sort) -> str:
    """Say what to do about a query that took too long."""
    if sort.order is None:
        return "The query took too long: narrow received_at, or add a more selective condition."
    return (
        "Sorting took too long: narrow received_at, add a more selective condition, or sort by"
        " received_at, which returns what it has found when the time is up."
    )


def make_cursor(sort: Sort, fingerprint: bytes, hit: Hit) -> str:
    """Return the cursor that continues after a hit."""
    kind = None if sort.order is None else sort.order.kind
    return cursors.encode(fingerprint, Cursor(hit.uid, kind, hit.value))


async def _find_by_time(  # noqa: PLR0917
    connection: AsyncConnection,
    query: Query,
    after: Cursor | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None,
) -> Page:
    record_form("time: inferences in order of time")
    ahead = None
    if include is not None and not query.scan_range.is_of_several:
        ahead = await make_ahead(connection, include, limit)
    search = await find_by_time(
        connection,
        query if after is None else query.after(after.uid),
        limit=limit,
        deadline=deadline,
        goes_on=after is not None,
        ahead=ahead,
    )
    is_partial = search.out_of_time and len(search.hits) < limit
    read = {} if ahead is None else ahead.inferences
    return Page(search.hits, read=read, searched=search.searched if is_partial else None)


Side = tuple[UUID | None, bool]
"""The nearest match, and whether it is certain that there is none if it is None."""


async def find_neighbours(
    connection: AsyncConnection, query: Query, sort: Sort, uid: UUID, deadline: Deadline
) -> tuple[Side, Side]:
    """Return the nearest match before and the nearest after an inference, in the order of a page.

    In order of time a uid is a place, whether there is such an inference or not. Raises NotFound if
    the order needs its value and it is gone; OutOfTime.
    """
    sort = sort.asking(query.wanted)
    if sort.order is None:
        before = await _find_beside(connection, query, not sort.descending, uid, deadline)
        return before, await _find_beside(connection, query, sort.descending, uid, deadline)
    if query.nothing:
        return (None, True), (None, True)
    position = await _find_position(connection, query.scan_range.model, sort.order, uid, deadline)
    sides: list[Side] = []
    for backwards in (True, False):
        hits = await find_sorted(
            connection,
            query,
            sort.order,
            limit=1,
            deadline=deadline,
            after=position,
            backwards=backwards,
        )
        sides.append((hits[0].uid if hits else None, True))
    return sides[0], sides[1]


async def _find_beside(
    connection: AsyncConnection, query: Query, newest_first: bool, uid: UUID, deadline: Deadline
) -> Side:
    beyond = replace(query, newest_first=newest_first).after(uid)
    search = await find_by_time(connection, beyond, limit=1, deadline=deadline)
    return (search.hits[0].uid if search.hits else None), not search.out_of_time


async def _find_position(
    connection: AsyncConnection, model: int, order: Order, uid: UUID, deadline: Deadline
) -> Cursor:
    here = ScanRange(model, LOWEST, HIGHEST).clip(uid, UUID(int=min(uid.int + 1, HIGHEST.int)))
    own = select(inference.c.uid).where(here.of(inference))
    if not await fetch(connection, own.where(test_unmarked(here, inference.c.uid)), deadline):
        raise NotFound(f"There is no inference {uid}, so its place in this order is unknown.")
    rows = order.rows(here)
    value = select(rows.value.label("value")).where(*rows.where).limit(1)
    found = await fetch(connection, value, deadline)
    return Cursor(uid, order.kind, add_time_zone(found[0].value) if found else None)
