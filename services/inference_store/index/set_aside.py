"""How many events of late could not be stored, and until when their limit is lifted."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import Select, Table, and_, func, select, union_all
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from .tables import dead_letter, dead_letter_limit_lift, kafka_partition, parked_event

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


async def lift_limit(connection: AsyncConnection, for_how_long: timedelta) -> datetime:
    """Let ingesters set aside what they cannot store, however much; until when. A time that was
    set before is replaced."""
    until = func.now() + for_how_long
    write = upsert(dead_letter_limit_lift).values(id=1, lifted_until=until)
    write = write.on_conflict_do_update(index_elements=["id"], set_={"lifted_until": until})
    returned = await connection.execute(write.returning(dead_letter_limit_lift.c.lifted_until))
    return cast(datetime, returned.scalar_one())


async def limit_is_lifted(connection: AsyncConnection) -> bool:
    """Whether `lift_limit` holds still."""
    query = select(dead_letter_limit_lift.c.lifted_until > func.now())
    return bool((await connection.execute(query)).scalar())


def _within(table: Table, window: timedelta) -> Select[tuple[object, ...]]:
    columns = [table.c[name] for name in (*_PLACE, "offset")]
    return select(*columns).where(table.c.created_at >= func.now() - window)
