"""Each partition's next offset, and the counts of the outcomes of the offsets before it."""

from collections.abc import Iterable, Mapping

from sqlalchemy import ColumnElement, Row, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import kafka_partition, lost_offsets

from .partition_id import ConsumerFenced, Outcome, PartitionId, Position


def _match(partition_id: PartitionId) -> ColumnElement[bool]:
    return and_(*(kafka_partition.c[name] == value for name, value in partition_id.values.items()))


def _build_position(row: Row[tuple[object, ...]]) -> Position:
    partition_id = PartitionId(row.cluster, row.topic, row.epoch, row.partition)
    return Position(partition_id, row.next, row.last_offset, row.last_hash)


async def find_position(
    connection: AsyncConnection, *, cluster: str, topic: str, partition: int
) -> Position | None:
    """Return where reading continues, in the partition's newest epoch; None if it never began."""
    table = kafka_partition.c
    query = (
        select(kafka_partition)
        .where(table.cluster == cluster, table.topic == topic, table.partition == partition)
        .order_by(table.epoch.desc())
        .limit(1)
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _build_position(row)


async def open_partition(
    connection: AsyncConnection, partition_id: PartitionId, *, first: int, began: str
) -> None:
    """Open the account of a partition at its first offset; repeatable."""
    values = {**partition_id.values, "first": first, "next": first, "began": began}
    await connection.execute(upsert(kafka_partition).values(values).on_conflict_do_nothing())


async def lock_at(connection: AsyncConnection, partition_id: PartitionId, lo: int) -> None:
    """Lock a partition's row. Raises ConsumerFenced if its next offset is not `lo`."""
    # Not FOR UPDATE: that would wait for everyone who adds a dead letter or a parked event.
    query = (
        select(kafka_partition.c.next).where(_match(partition_id)).with_for_update(key_share=True)
    )
    if await connection.scalar(query) != lo:
        raise ConsumerFenced(f"{partition_id} is not at {lo} any more")


async def lock_partitions(
    connection: AsyncConnection, partition_ids: Iterable[PartitionId]
) -> None:
    """Lock partitions' rows, in one order everywhere, and before all other rows."""
    for partition_id in sorted(set(partition_ids)):
        query = (
            select(kafka_partition.c.next)
            .where(_match(partition_id))
            .with_for_update(key_share=True)
        )
        await connection.execute(query)


async def move_offsets(
    connection: AsyncConnection,
    partition_id: PartitionId,
    *,
    lo: int,
    hi: int,
    outcomes: Mapping[Outcome, int],
    last: tuple[int, bytes] | None,
) -> None:
    """Move the next offset from `lo` to `hi`, and count the outcomes of the offsets between.

    Raises ConsumerFenced if it is no longer at `lo`, ValueError if the account would not close.
    """
    if sum(outcomes.values()) != hi - lo:
        raise ValueError(f"{partition_id}: {dict(outcomes)} does not account for [{lo}, {hi})")
    changes: dict[str, object] = {"next": hi, "updated_at": func.now(), **_increments(outcomes)}
    if last is not None:
        changes |= {"last_offset": last[0], "last_hash": last[1]}
    moved = await connection.execute(
        update(kafka_partition)
        .where(_match(partition_id), kafka_partition.c.next == lo)
        .values(changes)
    )
    if moved.rowcount != 1:
        raise ConsumerFenced(f"{partition_id} is not at {lo} any more")


def _increments(outcomes: Mapping[Outcome, int]) -> dict[str, ColumnElement[int]]:
    return {
        outcome.value: kafka_partition.c[outcome.value] + count
        for outcome, count in outcomes.items()
        if count
    }


async def change_outcomes(
    connection: AsyncConnection, changes: Mapping[PartitionId, Mapping[Outcome, int]]
) -> None:
    """Move offsets from one outcome to another; the changes of each partition sum to 0."""
    for partition_id in sorted(changes):
        if sum(changes[partition_id].values()) != 0:
            raise ValueError(f"{partition_id}: {dict(changes[partition_id])} would not close")
        increments = _increments(changes[partition_id])
        if increments:
            await connection.execute(
                update(kafka_partition).where(_match(partition_id)).values(increments)
            )


async def add_lost_offsets(
    connection: AsyncConnection, partition_id: PartitionId, *, lo: int, hi: int
) -> None:
    """Record the offsets [lo, hi) that Kafka deleted before they were read."""
    values = {**partition_id.values, "lo": lo, "hi": hi}
    await connection.execute(upsert(lost_offsets).values(values).on_conflict_do_nothing())
