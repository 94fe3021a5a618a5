"""Finds recently indexed inferences: by the time of indexing, not of the request.

A small index over `indexed_at` (BRIN) finds the end of each partition, where new rows are. A batch
may be committed after one that began later: a caller that follows arrivals asks for the last
seconds again, and remembers what it has seen.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import DateTime, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import inference
from inference_store.inference.events.event import uid_floor

from .deadline import Deadline, fetch
from .matching import Query, find_pieces, test_each
from .operand import bind_one
from .scan_range import GROUP, HIGHEST, ScanRange

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
