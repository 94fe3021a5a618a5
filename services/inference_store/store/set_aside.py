"""How many events of late could not be stored: dead letters and parked events together."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Select, Table, and_, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import dead_letter, kafka_partition, parked_event

_PLACE = ("cluster", "topic", "epoch", "partition")


@dataclass(frozen=True, slots=True)
class SetAside:
    """Events set aside within a window, of all events read since the first of them."""

    aside: int
    events: int


async def since(connection: AsyncConnection, window: timedelta) -> SetAside:
    """Over all partitions and ingesters: the books say how far each has been read."""
    both = union_all(_within(dead_letter, window), _within(parked_event, window)).subquery()
    places = [both.c[name] for name in _PLACE]
    count, first = func.count().label("count"), func.min(both.c.offset).label("first")
    found = select(*places, count, first).group_by(*places).subquery()
    here = and_(*(kafka_partition.c[name] == found.c[name] for name in _PLACE))
    # Offsets set aside in this very transaction lie beyond `next` as yet.
    read = func.greatest(kafka_partition.c.next - found.c.first, 0)
    query = select(
        func.coalesce(func.sum(found.c.count), 0), func.coalesce(func.sum(read), 0)
    ).join_from(found, kafka_partition, here)
    aside, events = (await connection.execute(query)).one()
    return SetAside(int(aside), int(events))


def _within(table: Table, window: timedelta) -> Select[tuple[object, ...]]:
    columns = [table.c[name] for name in (*_PLACE, "offset")]
    return select(*columns).where(table.c.created_at >= func.now() - window)
