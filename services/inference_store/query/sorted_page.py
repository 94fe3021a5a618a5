"""A page of matches in another order than that of time, of one model or of several.

There are three ways to find it. *Few*: if indexes find few matches, they are looked up and sorted.
*Walk*: the order's own index is scanned from the page's beginning, and each match is tested.
*Sort*: all that an index finds, or all there is, is sorted. Every partition returns its first rows,
and they are merged: what comes after a full page is not read. Inferences without a value come last,
in order of time. There is no partial page, except one with all that have a value if only those
without are left: if time runs out earlier, nothing of it is certain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Integer,
    Select,
    any_,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from .across import Unit, find_across, pair_units, split_batches
from .bounded import Deadline, OutOfTime, fetch
from .explain import record_form
from .hit import Hit
from .matching import Query, find_pieces, match_by_index
from .operand import bind_many
from .order import MissingValue, Order, sort_rows, test_beyond
from .scan_range import ScanRange, split_groups, test_unmarked
from .sorted_cursor import Cursor

FEW = 4_000
_UNITS = 64
Uids = Mapping[int, Sequence[UUID]]
"""Matches by model."""


class OnlyWithValue(OutOfTime):
    """Time ran out among inferences without a value; `hits`: all hits of the page that have one."""

    def __init__(self, hits: Sequence[Hit]) -> None:
        super().__init__()
        self.hits = hits


@dataclass(slots=True)
class _Search:
    """A page that is being found: the best hits so far, in order."""

    connection: AsyncConnection
    queries: Sequence[Query]
    order: Order
    after: Hit | None
    limit: int
    deadline: Deadline
    hits: list[Hit] = field(default_factory=list)

    @property
    def first(self) -> Query:
        return self.queries[0]

    def take(self, hits: Sequence[Hit]) -> None:
        """Merge a batch's hits, and drop those that a full page has no room for."""
        both = [*self.hits, *hits]
        both.sort(key=lambda hit: (hit.value, hit.uid), reverse=self.order.descending)
        self.hits = both[: self.limit]

    @property
    def worst(self) -> Hit | None:
        """The last hit of a full page."""
        return self.hits[-1] if len(self.hits) == self.limit else None


async def find_sorted(
    connection: AsyncConnection,
    queries: Sequence[Query],
    order: Order,
    *,
    limit: int,
    deadline: Deadline,
    after: Cursor | None = None,
    few: int = FEW,
) -> list[Hit]:
    """Find up to `limit` hits in that order, beyond `after`. Raises OutOfTime, OnlyWithValue.

    The queries are one request of several models; `few`: how many matches are looked up at most.
    """
    if not queries or queries[0].nothing or queries[0].scan_range.empty:
        return []
    parts = await find_pieces(connection, queries[0], newest_first=True)
    hits: list[Hit] = []
    if after is None or after.value is not None:
        place = None if after is None else Hit(0, after.uid, after.value)
        search = _Search(connection, queries, order, place, limit, deadline)
        await _find_with_value(search, parts, few)
        hits = search.hits
    if len(hits) < limit and not order.always:
        among = after.uid if after is not None and after.value is None else None
        left = limit - len(hits)
        try:
            hits = [
                *hits,
                *await _find_without_value(connection, queries, order, left, deadline, among),
            ]
        except OutOfTime:
            if not hits:
                raise
            raise OnlyWithValue(hits) from None
    return hits


async def _find_with_value(search: _Search, parts: Sequence[ScanRange], few: int) -> None:
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


async def _find_few(search: _Search, parts: Sequence[ScanRange], most: int) -> Uids | None:
    """Return the matches, if there are no more than so many; None also if that takes too long."""
    found: dict[int, list[UUID]] = {}
    left = most + 1
    deadline = Deadline.after(search.deadline.left_seconds * 0.25)
    try:
        for group in split_groups(parts, search.first.group):
            for batch in split_batches(search.queries):
                lists = partial(_select_all_matches, pair_units(batch, group), left)
                what, large = "see whether the matches are few", search.first.large
                for row in await fetch(search.connection, lists, deadline, large=large, what=what):
                    found.setdefault(row.model, []).append(row.uid)
                    left -= 1
                if left <= 0:
                    return None
    except OutOfTime:
        return None
    return found


def _select_all_matches(asked: Sequence[Unit], limit: int) -> Select[Any]:
    together = union_all(*(_select_matches(unit, limit) for unit in asked)).subquery()
    return select(together.c.model, together.c.uid).limit(limit)


def _select_matches(unit: Unit, limit: int) -> Select[Any]:
    query, scan_range = unit
    matches, unique = match_by_index(query, scan_range)
    uids = (matches if unique else matches.distinct()).limit(limit).subquery()
    return select(_select_model(query), uids.c.uid)


def _select_model(query: Query) -> ColumnElement[int]:
    return literal(query.scan_range.model, Integer).label("model")


async def _look_up(search: _Search, parts: Sequence[ScanRange], uids: Uids) -> None:
    """Read the values of these alone, wherever they are."""
    asked: list[Callable[[], Select[Any]]] = []
    for group in split_groups(parts):
        for query, scan_range in pair_units(search.queries, group):
            here = [
                uid
                for uid in uids.get(query.scan_range.model, ())
                if scan_range.lo <= uid < scan_range.hi
            ]
            if here:
                wanted = bind_many(here, UUID_TYPE(as_uuid=True))
                asked.append(
                    partial(
                        _select_ordered,
                        search,
                        (query, scan_range),
                        lambda _, uid, w=wanted: uid == any_(w),
                    )
                )
        if len(asked) >= _UNITS or group[-1] is parts[-1]:
            for start in range(0, len(asked), _UNITS):
                await _take(search, asked[start : start + _UNITS], "look up and sort few matches")
            asked = []


def _test_scanned(unit: Unit, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    query, scan_range = unit
    tests = [condition.holds(scan_range, uid) for condition in query.conditions]
    return [*tests, test_unmarked(scan_range, uid)] if query.marks else tests


def _test_driven(unit: Unit, uid: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    query, scan_range = unit
    return [uid.in_(match_by_index(query, scan_range)[0])]


async def _merge(
    search: _Search, parts: Sequence[ScanRange], tested: Any, what: str, *, share: float = 1.0
) -> None:
    """Read the first rows of every partition of every model, each batch beyond those before it."""
    deadline = Deadline.after(search.deadline.left_seconds * share)
    for group in split_groups(parts, search.first.group):
        for batch in split_batches(search.queries):
            asked = [
                partial(_select_ordered, search, unit, tested) for unit in pair_units(batch, group)
            ]
            await _take(search, asked, what, deadline)


def _select_ordered(search: _Search, unit: Unit, tested: Any) -> Select[Any]:
    query, scan_range = unit
    rows = search.order.rows(scan_range)
    found = select(_select_model(query), rows.uid.label("uid"), rows.value.label("value"))
    tests = tested(unit, rows.uid)
    found = found.where(*rows.where, *(tests if isinstance(tests, list) else [tests]))
    if search.after is not None:
        found = found.where(test_beyond(search.order, rows, search.after, after=True))
    if search.worst is not None:
        found = found.where(test_beyond(search.order, rows, search.worst, after=False))
    return sort_rows(search.order, rows, found, search.limit)


async def _take(
    search: _Search,
    asked: Sequence[Callable[[], Select[Any]]],
    what: str,
    deadline: Deadline | None = None,
) -> None:
    def together() -> CompoundSelect[Any]:
        parts = [part().subquery() for part in asked]
        return union_all(*(select(part.c.model, part.c.uid, part.c.value) for part in parts))

    limit, large = deadline or search.deadline, search.first.large
    rows = await fetch(search.connection, together, limit, large=large, what=what)
    search.take([Hit(row.model, row.uid, _add_time_zone(row.value)) for row in rows])


def _add_time_zone(value: Any) -> Any:
    """Add the time zone to the first and the last instant, which the driver gives without one."""
    naive = isinstance(value, datetime) and value.tzinfo is None
    return value.replace(tzinfo=UTC) if naive else value


async def _find_without_value(  # noqa: PLR0917
    connection: AsyncConnection,
    queries: Sequence[Query],
    order: Order,
    limit: int,
    deadline: Deadline,
    after: UUID | None,
) -> list[Hit]:
    """Find inferences without a value, in order of time."""
    lacks = MissingValue(order, drives=not queries[0].is_driven)
    asked = [
        replace(query, conditions=(*query.conditions, lacks), newest_first=order.descending)
        for query in queries
    ]
    if after is not None:
        asked = [query.after(after) for query in asked]
    found = await find_across(connection, asked, limit=limit, deadline=deadline)
    if found.out_of_time:
        raise OutOfTime
    return found.hits
