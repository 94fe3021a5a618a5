"""The matches next to one inference, before and after it in the order of a page."""

from dataclasses import replace
from functools import partial
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.errors import NotFound

from . import page
from .deadline import Deadline, fetch
from .matching import Query
from .order import Backwards, Order
from .scan_range import HIGHEST, LOWEST, ScanRange, test_unmarked
from .sort import Sort
from .sorted_cursor import Cursor
from .sorted_page import add_time_zone, find_sorted, find_without_value

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
        before = await _find_by_time(connection, query, not sort.descending, uid, deadline)
        return before, await _find_by_time(connection, query, sort.descending, uid, deadline)
    if query.nothing:
        return (None, True), (None, True)
    position = await _find_position(connection, query.scan_range.model, sort.order, uid, deadline)
    before = await _find_before(connection, query, sort.order, position, deadline)
    after = await find_sorted(
        connection, [query], sort.order, limit=1, deadline=deadline, after=position
    )
    return before, (after[0].uid if after else None, True)


async def _find_by_time(
    connection: AsyncConnection, query: Query, newest_first: bool, uid: UUID, deadline: Deadline
) -> Side:
    beyond = replace(query, newest_first=newest_first).after(uid)
    search = await page.find_page(connection, beyond, limit=1, deadline=deadline)
    return (search.uids[0] if search.uids else None), not search.out_of_time


async def _find_position(
    connection: AsyncConnection, model: int, order: Order, uid: UUID, deadline: Deadline
) -> Cursor:
    """Return where an inference stands in the order, whether it matches or not."""
    here = ScanRange(model, LOWEST, HIGHEST).clip(uid, UUID(int=min(uid.int + 1, HIGHEST.int)))
    if not await fetch(connection, partial(_select_stored, here), deadline):
        raise NotFound(
            f"There is no inference {uid}, so that nobody knows where it stands in this order."
        )
    rows = await fetch(connection, partial(_select_value, order, here), deadline)
    return Cursor(order.kind, uid, add_time_zone(rows[0].value) if rows else None)


def _select_stored(here: ScanRange) -> Select[tuple[UUID]]:
    return select(inference.c.uid).where(here.of(inference), test_unmarked(here, inference.c.uid))


def _select_value(order: Order, here: ScanRange) -> Select[tuple[object]]:
    rows = order.rows(here)
    return select(rows.value.label("value")).where(*rows.where).limit(1)


async def _find_before(
    connection: AsyncConnection, query: Query, order: Order, position: Cursor, deadline: Deadline
) -> Side:
    """Find the nearest match before a position: without a value, then among those that have one."""
    if position.value is None and not query.scan_range.empty:
        hits = await find_without_value(
            connection,
            [query],
            order,
            limit=1,
            deadline=deadline,
            after=position.uid,
            newest_first=not order.descending,
        )
        if hits:
            return hits[0].uid, True
    hits = await find_sorted(
        connection,
        [query],
        Backwards(order),
        limit=1,
        deadline=deadline,
        after=None if position.value is None else position,
    )
    return (hits[0].uid if hits else None), True
