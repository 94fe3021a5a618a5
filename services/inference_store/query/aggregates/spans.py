"""The spans of time between the first and the last inference."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.errors import Fault, TooManyGroups
from inference_store.inference.events.event import received_at_of
from inference_store.query.deadline import Deadline, fetch
from inference_store.query.matching import Query
from inference_store.query.scan_range import find_pieces_of, span_around, split_unbroken

from .aggregation import ByTime
from .buckets import TooManyBuckets, starts, width_of
from .part_collector import Target

MOST_SPANS = 10_000


async def starts_of(
    connection: AsyncConnection, targets: Sequence[Target], by: ByTime, deadline: Deadline
) -> list[datetime]:
    """Return the beginning of each span of time, and the end of the last; empty if nothing matches.

    Raises TooManyGroups.
    """
    ends = [await _ends(connection, target.query, deadline) for target in targets]
    present = [pair for pair in ends if pair is not None]
    if not present:
        return []
    first, last = min(lo for lo, _ in present), max(hi for _, hi in present)
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
    """Return the first or the last uid in the range, whether it matches or not."""
    uid = inference.c.uid
    what = f"find the {'last' if newest else 'first'} inference"
    parts = await find_pieces_of(connection, query.scan_range, newest_first=newest)
    for group in split_unbroken(parts):
        here = select(uid).where(span_around(group).of(inference)).limit(1)
        ordered = here.order_by(uid.desc() if newest else uid)
        rows = await fetch(connection, ordered, deadline, what=what)
        if rows:
            uid_at_end: UUID = rows[0][0]
            return uid_at_end
    return None
