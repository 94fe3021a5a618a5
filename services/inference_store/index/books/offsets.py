"""Each partition's next offset, and the counts of what became of those before it."""

from collections.abc import Iterable, Mapping

from sqlalchemy import ColumnElement, Row, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import kafka_partition, lost_offsets

from .place import Fenced, Outcome, Place, Position


def _at(place: Place) -> ColumnElement[bool]:
    return and_(*(kafka_partition.c[name] == value for name, value in place.values.items()))


def _position(row: Row[tuple[object, ...]]) -> Position:
    place = Place(row.cluster, row.topic, row.epoch, row.partition)
    return Position(place, row.next, row.last_offset, row.last_hash)


async def position(
    connection: AsyncConnection, *, cluster: str, topic: str, partition: int
) -> Position | None:
    """Where reading of a partition goes on, in its newest epoch; None where it never began."""
    table = kafka_partition.c
    query = (
        select(kafka_partition)
        .where(table.cluster == cluster, table.topic == topic, table.partition == partition)
        .order_by(table.epoch.desc())
        .limit(1)
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _position(row)


async def begin(connection: AsyncConnection, place: Place, *, first: int, began: str) -> None:
    """Open the books of a partition at its first offset; two at once make one."""
    values = {**place.values, "first": first, "next": first, "began": began}
    await connection.execute(upsert(kafka_partition).values(values).on_conflict_do_nothing())


async def hold(connection: AsyncConnection, place: Place, lo: int) -> None:
    """Lock a partition's row; raises Fenced where its next offset is not `lo`."""
    # not FOR UPDATE: that would wait for everyone who adds a dead letter or a parked event
    query = select(kafka_partition.c.next).where(_at(place)).with_for_update(key_share=True)
    if await connection.scalar(query) != lo:
        raise Fenced(f"{place} is not at {lo} any more")


async def lock(connection: AsyncConnection, places: Iterable[Place]) -> None:
    """Lock partitions' rows, wherever they are; one order everywhere, the books before all else."""
    for place in sorted(set(places)):
        query = select(kafka_partition.c.next).where(_at(place)).with_for_update(key_share=True)
        await connection.execute(query)


async def move(
    connection: AsyncConnection,
    place: Place,
    *,
    lo: int,
    hi: int,
    outcomes: Mapping[Outcome, int],
    last: tuple[int, bytes] | None,
) -> None:
    """Move the next offset from `lo` to `hi`, and count what became of the offsets between.

    Raises Fenced where it is not at `lo` any more, ValueError where the books would not close.
    """
    if sum(outcomes.values()) != hi - lo:
        raise ValueError(f"{place}: {dict(outcomes)} does not account for [{lo}, {hi})")
    changes: dict[str, object] = {"next": hi, "updated_at": func.now(), **_added(outcomes)}
    if last is not None:
        changes |= {"last_offset": last[0], "last_hash": last[1]}
    moved = await connection.execute(
        update(kafka_partition).where(_at(place), kafka_partition.c.next == lo).values(changes)
    )
    if moved.rowcount != 1:
        raise Fenced(f"{place} is not at {lo} any more")


def _added(outcomes: Mapping[Outcome, int]) -> dict[str, ColumnElement[int]]:
    return {
        outcome.value: kafka_partition.c[outcome.value] + count
        for outcome, count in outcomes.items()
        if count
    }


async def change(
    connection: AsyncConnection, changes: Mapping[Place, Mapping[Outcome, int]]
) -> None:
    """Move offsets from one state to another (a redrive): the counts of each place sum to 0."""
    for place in sorted(changes):
        if sum(changes[place].values()) != 0:
            raise ValueError(f"{place}: {dict(changes[place])} would not close")
        added = _added(changes[place])
        if added:
            await connection.execute(update(kafka_partition).where(_at(place)).values(added))


async def name_lost(connection: AsyncConnection, place: Place, *, lo: int, hi: int) -> None:
    """Write down offsets that the log dropped before they were read: [lo, hi)."""
    values = {**place.values, "lo": lo, "hi": hi}
    await connection.execute(upsert(lost_offsets).values(values).on_conflict_do_nothing())
