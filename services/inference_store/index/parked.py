"""Parked events: their blob does not exist yet; they are retried on a schedule, or when asked."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.inference.errors import NotFound

from . import accounting, dead_letters
from .accounting import Outcome
from .dead_letters import DeadLetter, Selection
from .records import Record, Rejection, record_of
from .scope_filters import match_model_ids
from .tables import parked_event


@dataclass(frozen=True, slots=True)
class ParkedEvent:
    """An event that waits for a blob."""

    id: int
    record: Record
    rejection: Rejection
    missing: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime


@dataclass(frozen=True, slots=True)
class Schedule:
    """The waits between tries of a parked event: doubling from `first` up to `longest`."""

    first: timedelta
    longest: timedelta
    give_up: timedelta

    def wait(self, attempts: int) -> timedelta:
        """Return the wait after that many tries."""
        doubled: timedelta = self.first * 2 ** min(attempts, 30)
        return min(doubled, self.longest)


def _parked(row: Any) -> ParkedEvent:
    return ParkedEvent(
        id=row.id,
        record=record_of(row),
        rejection=Rejection(row.reason, row.detail, row.model_id, row.inference_id),
        missing=row.missing,
        attempts=row.attempts,
        created_at=row.created_at,
        next_attempt_at=row.next_attempt_at,
    )


async def add(
    connection: AsyncConnection,
    events: Sequence[tuple[Record, Rejection, str]],
    schedule: Schedule,
) -> None:
    """Park events, each with the storage key that is missing; repeatable."""
    if events:
        at = func.now() + schedule.wait(0)
        rows = [
            {**record.values, **rejection.values, "missing": missing}
            for record, rejection, missing in events
        ]
        statement = upsert(parked_event).values(next_attempt_at=at).on_conflict_do_nothing()
        for row in rows:
            await connection.execute(statement.values(row))


async def due(connection: AsyncConnection, *, limit: int) -> list[ParkedEvent]:
    """Return due events, the longest waiting first, without a lock."""
    query = (
        select(parked_event)
        .where(parked_event.c.next_attempt_at <= func.now())
        .order_by(parked_event.c.next_attempt_at)
        .limit(limit)
    )
    return [_parked(row) for row in await connection.execute(query)]


async def lock(connection: AsyncConnection, ids: Iterable[int]) -> set[int]:
    """Lock events that are still parked, except those that another ingester has locked."""
    query = select(parked_event.c.id).where(parked_event.c.id.in_(sorted(ids)))
    return set((await connection.execute(query.with_for_update(skip_locked=True))).scalars())


async def postpone(connection: AsyncConnection, event: ParkedEvent, schedule: Schedule) -> None:
    """Schedule the next try."""
    await connection.execute(
        update(parked_event)
        .where(parked_event.c.id == event.id)
        .values(
            attempts=event.attempts + 1,
            next_attempt_at=func.now() + schedule.wait(event.attempts + 1),
            updated_at=func.now(),
        )
    )


async def remove(connection: AsyncConnection, id: int) -> None:
    """Remove an event that is no longer parked: it is stored, or a dead letter."""
    await connection.execute(delete(parked_event).where(parked_event.c.id == id))


async def waiting(connection: AsyncConnection) -> int:
    """Return the number of parked events."""
    return int(await connection.scalar(select(func.count()).select_from(parked_event)) or 0)


async def find(
    connection: AsyncConnection, selection: Selection, *, limit: int, before: int | None = None
) -> list[ParkedEvent]:
    """Return parked events, the newest first; `before`: the id of the last one of the page
    before."""
    query = select(parked_event).where(selection.where(parked_event))
    if before is not None:
        query = query.where(parked_event.c.id < before)
    rows = await connection.execute(query.order_by(parked_event.c.id.desc()).limit(limit))
    return [_parked(row) for row in rows]


async def get(
    connection: AsyncConnection, id: int, *, within: AccessScope = EVERYTHING
) -> ParkedEvent:
    """Return a parked event. Raises NotFound, also if its model is not within the scope."""
    here = parked_event.c
    query = select(parked_event).where(here.id == id, match_model_ids(within, here.model_id))
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"there is no parked event {id}: it may be stored, or a dead letter")
    return _parked(row)


async def retry_now(connection: AsyncConnection, selection: Selection) -> int:
    """Make every selected event due; return the number."""
    result = await connection.execute(
        update(parked_event)
        .where(selection.where(parked_event))
        .values(next_attempt_at=func.now(), updated_at=func.now())
    )
    return result.rowcount


async def retry_one(connection: AsyncConnection, id: int) -> ParkedEvent:
    """Make one event due. Raises NotFound."""
    here = parked_event.c
    await connection.execute(
        update(parked_event)
        .where(here.id == id)
        .values(next_attempt_at=func.now(), updated_at=func.now())
    )
    return await get(connection, id)


async def discard(connection: AsyncConnection, id: int, reason: str) -> DeadLetter:
    """Decide that an event will never be indexed: it becomes a discarded dead letter.

    Raises NotFound, also if it is being stored meanwhile.
    """
    partition_id = (await get(connection, id)).record.partition_id
    # the accounting first, as in the ingester: the two cannot deadlock
    await accounting.lock_partitions(connection, {partition_id})
    event = await get(connection, id)
    await remove(connection, id)
    moved = Counter({Outcome.PARKED: -1, Outcome.DEAD: 1})
    await accounting.change_outcomes(connection, {partition_id: moved})
    return await dead_letters.discard_parked(connection, event.record, event.rejection, reason)
