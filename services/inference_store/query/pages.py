"""A page of matches in another order than that of time, of one model or of several.

There are three ways to find it. *Few*: if indexes find few matches, they are looked up and sorted.
*Walk*: the order's own index is scanned from the page's beginning, and each inference is tested.
*Sort*: all matches of an index, or all inferences, are sorted. Every partition returns its first
rows, and they are merged: rows after a full page are not read. Inferences without a value come
last, in order of time. A page is partial only if it has all hits with a value, and time ran out
among those without: if time runs out earlier, the order of the hits is not certain.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Integer, Select, any_, literal, select, tuple_, union_all
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.errors import NotFound
from inference_store.inference.events.event import received_at_of

from . import cursor as cursors
from .cursor import Cursor
from .deadline import (
    HIGHEST,
    LOWEST,
    Deadline,
    OutOfTime,
    ScanRange,
    bind_many,
    bind_one,
    fetch,
    test_unmarked,
)
from .explain import record_form
from .matching import Hit, Query, find_pieces, match_by_index
from .order import MissingValue, Order, Rows, Sort
from .read import Inference, make_ahead
from .search import Search, Unit, add_model, find_by_time, iterate_units, pair_units

FEW = 4_000
_UNITS = 64
Uids: TypeAlias = Mapping[int, Sequence[UUID]]
"""Matches by model."""
Parts: TypeAlias = Sequence[Callable[[], Select[Any]]]


class OnlyWithValue(OutOfTime):
    """Time ran out among inferences without a value; `hits`: all hits of the page that have one."""

    def __init__(self, hits: Sequence[Hit]) -> None:
        super().__init__()
        self.hits = hits


@dataclass(slots=True, kw_only=True)
class _Sorted(Search):
    """A search in another order. `descending`: of the page, which may be the order backwards."""

    order: Order
    descending: bool
    after: Cursor | None

    async def take(self, parts: Parts, what: str, deadline: Deadline) -> None:
        """Merge the hits of these statements with the others, and drop what is beyond the page."""
        found = await self.read(parts, what, deadline)
        both = [*self.hits, *(hit._replace(value=add_time_zone(hit.value)) for hit in found)]
        both.sort(key=attrgetter("value", "uid"), reverse=self.descending)
        self.hits = both[: self.limit]

    @property
    def worst(self) -> Hit | None:
        """The last hit of a full page."""
        return self.hits[-1] if len(self.hits) == self.limit else None

    def test_beyond(
        self, rows: Rows, position: Hit | Cursor, *, after: bool
    ) -> ColumnElement[bool]:
        """Test that a row comes after a position in the order, or before it."""
        bound = tuple_(
            bind_one(position.value, self.order.type), bind_one(position.uid, inference.c.uid.type)
        )
        row = tuple_(rows.value, rows.uid)
        return row < bound if after == self.descending else row > bound


async def find_sorted(
    connection: AsyncConnection,
    queries: Sequence[Query],
    order: Order,
    *,
    limit: int,
    deadline: Deadline,
    after: Cursor | None = None,
    few: int = FEW,
    backwards: bool = False,
) -> list[Hit]:
    """Find up to `limit` hits in that order, beyond `after`. Raises OutOfTime, OnlyWithValue.

    The queries are one request of several models; `few`: how many matches are looked up at most.
    `backwards`: from the order's end to its beginning; of several values an inference is at the
    one that the order takes.
    """
    if not queries:
        return []
    parts = await find_pieces(connection, queries[0], newest_first=True)
    lacking = after if after is not None and after.value is None else None
    search = _Sorted(
        connection=connection,
        queries=queries,
        limit=limit,
        deadline=deadline,
        order=order,
        descending=order.descending != backwards,
        after=after if lacking is None else None,
    )
    last = await _find_without_value(search, lacking) if backwards and lacking else []
    search.limit -= len(last)
    if search.limit and (backwards or lacking is None):
        await _find_with_value(search, parts, few)
    hits = [*last, *search.hits]
    if len(search.hits) < search.limit and not (order.always or backwards):
        try:
            hits += await _find_without_value(search, lacking)
        except OutOfTime:
            if not hits:
                raise
            raise OnlyWithValue(hits) from None
    return hits


async def _find_with_value(search: _Sorted, parts: Sequence[ScanRange], few: int) -> None:
    led_to = await _find_few(search, parts, few) if search.first.is_driven else None
    if led_to is not None:
        record_form("few: the matches were looked up and sorted")
        await _look_up(search, parts, led_to)
        return
    if search.order.is_scannable:
        try:
            record_form("walk: the order's index was walked, what it named was tested")
            await _merge(search, parts, _test_scanned, "walk the order", share=0.5)
        except OutOfTime:
            if not search.first.is_driven:
                raise
            search.hits = []
        else:
            return
    record_form("sort: all matches were sorted")
    tested = _test_driven if search.first.is_driven else _test_scanned
    await _merge(search, parts, tested, "sort the matches")


async def _find_few(search: _Sorted, parts: Sequence[ScanRange], most: int) -> Uids | None:
    uids: dict[int, list[UUID]] = {}
    remaining = most + 1
    deadline = Deadline.after(search.deadline.left_seconds * 0.25)
    try:
        for units in iterate_units(search.queries, parts):
            lists = partial(_select_all_matches, units, remaining)
            for hit in await search.read([lists], "see whether the matches are few", deadline):
                uids.setdefault(hit.model, []).append(hit.uid)
                remaining -= 1
            if remaining <= 0:
                return None
    except OutOfTime:
        return None
    return uids


def _select_all_matches(units: Sequence[Unit], limit: int) -> Select[Any]:
    matches = (add_model(unit[0], match_by_index(*unit).limit(limit)) for unit in units)
    together = union_all(*matches).subquery()
    return select(together.c.model, together.c.uid).limit(limit)


async def _look_up(search: _Sorted, parts: Sequence[ScanRange], uids: Uids) -> None:
    matching = [query for query in search.queries if query.scan_range.model in uids]
    selects: list[Callable[[], Select[Any]]] = []
    for query, scan_range in pair_units(matching, parts):
        found = uids[query.scan_range.model]
        here = [uid for uid in found if scan_range.lo <= uid < scan_range.hi]
        if here:
            unit = query, scan_range
            selects.append(partial(_select_ordered, search, unit, partial(_test_named, here)))
    for start in range(0, len(selects), _UNITS):
        some, what = selects[start : start + _UNITS], "look up and sort few matches"
        await search.take(some, what, search.deadline)


Tested: TypeAlias = Callable[[Unit, ColumnElement[Any]], list[ColumnElement[bool]]]


def _test_named(
    uids: Sequence[UUID], _: Unit, uid: ColumnElement[Any]
) -> list[ColumnElement[bool]]:
    return [uid == any_(bind_many(uids, UUID_TYPE(as_uuid=True)))]


def _test_scanned(unit: Unit, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    query, scan_range = unit
    tests = [condition.holds(scan_range, uid) for condition in query.conditions]
    return [*tests, test_unmarked(scan_range, uid)] if query.marks else tests


def _test_driven(unit: Unit, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    return [uid.in_(match_by_index(*unit))]


async def _merge(
    search: _Sorted, parts: Sequence[ScanRange], tested: Tested, what: str, *, share: float = 1.0
) -> None:
    deadline = Deadline.after(search.deadline.left_seconds * share)
    for units in iterate_units(search.queries, parts):
        selects = [partial(_select_ordered, search, unit, tested) for unit in units]
        await search.take(selects, what, deadline)


def _select_ordered(search: _Sorted, unit: Unit, tested: Tested) -> Select[Any]:
    query, scan_range = unit
    rows = search.order.rows(scan_range)
    model = literal(query.scan_range.model, Integer).label("model")
    matches = select(model, rows.uid.label("uid"), rows.value.label("value"))
    matches = matches.where(*rows.where, *tested(unit, rows.uid))
    if search.after is not None:
        matches = matches.where(search.test_beyond(rows, search.after, after=True))
    if search.worst is not None:
        matches = matches.where(search.test_beyond(rows, search.worst, after=False))
    keys = (rows.value, rows.uid)
    ordered = matches.order_by(*(k.desc() if search.descending else k.asc() for k in keys))
    return ordered.limit(search.limit)


def add_time_zone(value: Any) -> Any:
    """Add the time zone to the first and the last instant: the driver returns them without one."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else value


async def _find_without_value(search: _Sorted, after: Cursor | None) -> list[Hit]:
    lacks = MissingValue(search.order, drives=not search.first.is_driven)
    without_value = [
        replace(query, conditions=(*query.conditions, lacks), newest_first=search.descending)
        for query in search.queries
    ]
    if after is not None:
        without_value = [query.after(after.uid) for query in without_value]
    limit = search.limit - len(search.hits)
    found = await find_by_time(
        search.connection, without_value, limit=limit, deadline=search.deadline
    )
    if found.out_of_time:
        raise OutOfTime
    return found.hits


@dataclass(frozen=True, slots=True)
class Page:
    """The hits of a page, and the cursor of the next one.

    `searched_back_to`: the time down to which it searched before time ran out.
    """

    hits: Sequence[Hit]
    next: str | None = None
    read: Mapping[UUID, Inference] = field(default_factory=dict)
    """The inferences that were read with the hits: all are of one model."""
    searched_back_to: datetime | None = None


async def find_page(
    connection: AsyncConnection,
    queries: Sequence[Query],
    sort: Sort,
    *,
    fingerprint: bytes,
    cursor: str | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None = None,
) -> Page:
    """Find a page of one request, by a query of each model. Raises OutOfTime, InvalidCursor.

    `include`: the parts to show with the hits, if they may be read together. `fingerprint`: of the
    request; a cursor of another one is refused. The deadline's soft end applies in order of time,
    because such a page may say how far back it has searched.
    """
    order, after = sort.order, None
    if cursor is not None:
        kind, type_ = (None, None) if order is None else (order.kind, order.type)
        after = cursors.decode(fingerprint, cursor, kind, type_)
    if order is None:
        ways = limit + 1, deadline, include
        result = await _find_by_time(connection, queries, fingerprint, after, *ways)
    else:
        ends = deadline.whole
        try:
            hits = await find_sorted(
                connection, queries, order, limit=limit + 1, deadline=ends, after=after
            )
        except OnlyWithValue as some:
            return Page(some.hits, make_cursor(sort, fingerprint, some.hits[-1]))
        result = Page(hits)
    if len(result.hits) <= limit:
        return result
    following = make_cursor(sort, fingerprint, result.hits[limit - 1])
    return replace(result, hits=result.hits[:limit], next=following)


def describe_narrowing(sort: Sort) -> str:
    """Say what to do about a query that took too long."""
    if sort.order is None:
        return "The query took too long: narrow received_at, or add a condition that fewer match."
    return (
        "Sorting took too long: narrow received_at, add a condition that fewer match, or sort by"
        " received_at, which answers what it has found when time is over."
    )


def make_cursor(sort: Sort, fingerprint: bytes, hit: Hit) -> str:
    """Return the cursor that continues after a hit."""
    kind = None if sort.order is None else sort.order.kind
    return cursors.encode(fingerprint, Cursor(hit.uid, kind, hit.value))


async def _find_by_time(  # noqa: PLR0917
    connection: AsyncConnection,
    queries: Sequence[Query],
    fingerprint: bytes,
    after: Cursor | None,
    limit: int,
    deadline: Deadline,
    include: Collection[str] | None,
) -> Page:
    goes_on = after is not None
    if after is not None:
        queries = [query.after(after.uid) for query in queries]
    record_form("time: inferences in order of time")
    ahead = None
    if len(queries) == 1 and include is not None:
        ahead = await make_ahead(connection, include, limit)
    search = await find_by_time(
        connection, queries, limit=limit, deadline=deadline, goes_on=goes_on, ahead=ahead
    )
    page = Page(search.hits, read={} if ahead is None else ahead.inferences)
    if search.out_of_time and search.searched is not None and len(search.hits) < limit:
        back_to = received_at_of(search.searched)
        following = cursors.encode(fingerprint, Cursor(search.searched))
        return replace(page, next=following, searched_back_to=back_to)
    return page


Side = tuple[UUID | None, bool]
"""The nearest match, and whether it is certain that there is none if it is None."""


async def find_neighbours(
    connection: AsyncConnection, query: Query, sort: Sort, uid: UUID, deadline: Deadline
) -> tuple[Side, Side]:
    """Return the nearest match before and the nearest after an inference, in the order of a page.

    In order of time a uid is a place, whether there is such an inference or not. Raises NotFound if
    the order needs its value and it is gone; OutOfTime.
    """
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
            [query],
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
    search = await find_by_time(connection, [beyond], limit=1, deadline=deadline)
    return (search.hits[0].uid if search.hits else None), not search.out_of_time


async def _find_position(
    connection: AsyncConnection, model: int, order: Order, uid: UUID, deadline: Deadline
) -> Cursor:
    here = ScanRange(model, LOWEST, HIGHEST).clip(uid, UUID(int=min(uid.int + 1, HIGHEST.int)))
    own = select(inference.c.uid).where(here.of(inference))
    if not await fetch(connection, own.where(test_unmarked(here, inference.c.uid)), deadline):
        raise NotFound(
            f"There is no inference {uid}, so that nobody knows where it stands in this order."
        )
    rows = order.rows(here)
    value = select(rows.value.label("value")).where(*rows.where).limit(1)
    found = await fetch(connection, value, deadline)
    return Cursor(uid, order.kind, add_time_zone(found[0].value) if found else None)
