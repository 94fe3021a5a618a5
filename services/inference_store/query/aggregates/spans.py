"""From when to when there are inferences, and the spans of time between."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.errors import Fault, TooManyGroups
from inference_store.inference.events.uid import received_at_of
from inference_store.query.bounded import Deadline, fetch
from inference_store.query.matching import Query
from inference_store.query.scan_range import find_pieces_of, span_around, split_unbroken

from .asked import ByTime
from .buckets import TooManyBuckets, starts, width_of
from .gather import Target

MOST_SPANS = 10_000


async def starts_of(
    connection: AsyncConnection, targets: Sequence[Target], by: ByTime, deadline: Deadline
) -> list[datetime]:
    """When each span of time begins, and the last one ends; empty where there is nothing.

    Raises TooManyGroups.
    """
    ends = [await _ends(connection, each.query, deadline) for each in targets]
    found = [each for each in ends if each is not None]
    if not found:
        return []
    first, last = min(lo for lo, _ in found), max(hi for _, hi in found)
    try:
        return starts(width_of(by.span), ZoneInfo(by.zone), first, last, most=MOST_SPANS)
    except TooManyBuckets:
        message = f"from {first:%Y-%m-%d} to {last:%Y-%m-%d} there are more than {MOST_SPANS:,}"
        detail = f"Spans of {by.span}: {message}. Narrow received_at, or take longer spans."
        raise TooManyGroups(detail, faults=[Fault(by.path, message)]) from None


async def _ends(
    connection: AsyncConnection, query: Query, deadline: Deadline
) -> tuple[datetime, datetime] | None:
    if query.nothing or query.scan_range.empty:
        return None
    first = await _end(connection, query, deadline, newest=False)
    last = await _end(connection, query, deadline, newest=True)
    if first is None or last is None:
        return None
    return received_at_of(first), received_at_of(last)


async def _end(
    connection: AsyncConnection, query: Query, deadline: Deadline, *, newest: bool
) -> UUID | None:
    """The first or the last uid of all in the range, whether it matches or not."""
    uid = inference.c.uid
    what = f"find the {'last' if newest else 'first'} inference"
    parts = await find_pieces_of(connection, query.scan_range, newest_first=newest)
    for group in split_unbroken(parts):
        here = select(uid).where(span_around(group).of(inference)).limit(1)
        ordered = here.order_by(uid.desc() if newest else uid)
        rows = await fetch(connection, ordered, deadline, what=what)
        if rows:
            found: UUID = rows[0][0]
            return found
    return None
