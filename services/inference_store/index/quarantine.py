"""The number of recent events that could not be stored, and the lift of its limit."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import Select, Table, and_, func, select, union_all
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import dead_letter, dead_letter_limit_lift, kafka_partition, parked_event

_PLACE = ("cluster", "topic", "epoch", "partition")


@dataclass(frozen=True, slots=True)
class QuarantineShare:
    """Events quarantined within a window, and all events read since the first of them."""

    quarantined: int
    events: int


async def count_quarantined(connection: AsyncConnection, window: timedelta) -> QuarantineShare:
    """Count over all partitions and ingesters; the accounting has the position of each."""
    both = union_all(_within(dead_letter, window), _within(parked_event, window)).subquery()
    places = [both.c[name] for name in _PLACE]
    count, first = func.count().label("count"), func.min(both.c.offset).label("first")
    counts = select(*places, count, first).group_by(*places).subquery()
    here = and_(*(kafka_partition.c[name] == counts.c[name] for name in _PLACE))
    # Offsets quarantined in this very transaction are still beyond `next`.
    read = func.greatest(kafka_partition.c.next - counts.c.first, 0)
    query = select(
        func.coalesce(func.sum(counts.c.count), 0), func.coalesce(func.sum(read), 0)
    ).join_from(counts, kafka_partition, here)
    quarantined, events = (await connection.execute(query)).one()
    return QuarantineShare(int(quarantined), int(events))


async def lift_limit(connection: AsyncConnection, for_how_long: timedelta) -> datetime:
    """Let ingesters quarantine events without limit for a while; return its end.

    It replaces an earlier end.
    """
    until = func.now() + for_how_long
    write = upsert(dead_letter_limit_lift).values(id=1, lifted_until=until)
    write = write.on_conflict_do_update(index_elements=["id"], set_={"lifted_until": until})
    returned = await connection.execute(write.returning(dead_letter_limit_lift.c.lifted_until))
    return cast(datetime, returned.scalar_one())


async def limit_is_lifted(connection: AsyncConnection) -> bool:
    """Check whether the limit is still lifted."""
    query = select(dead_letter_limit_lift.c.lifted_until > func.now())
    return bool((await connection.execute(query)).scalar())


def _within(table: Table, window: timedelta) -> Select[tuple[object, ...]]:
    columns = [table.c[name] for name in (*_PLACE, "offset")]
    return select(*columns).where(table.c.created_at >= func.now() - window)
