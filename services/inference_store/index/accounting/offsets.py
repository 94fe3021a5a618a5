"""The accounts of partitions: the next offset, the outcome of each before it, and the lag."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import (
    consumer_lag,
    kafka_partition,
    lost_offsets,
    unsettled_event,
)
from inference_store.inference.field_docs import Stored


class Outcome(StrEnum):
    """The outcome of an offset. This is the one list of them; each has a column of its name."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    PARKED = "parked"
    EXPIRED = "expired"
    ERASED_AGAIN = "erased_again"
    LOST = "lost"
    NOT_DELIVERED = "not_delivered"


class ConsumerFenced(Exception):
    """Another consumer has moved this partition on: discard the batch, and find the position."""


class PartitionId(NamedTuple):
    """A partition of a topic in a cluster; a topic that is created again has a new epoch."""

    cluster: str
    topic: str
    epoch: int
    partition: int

    @classmethod
    def of(cls, row: Any) -> "PartitionId":
        """Return the partition that a row of any table names."""
        return cls(row.cluster, row.topic, row.epoch, row.partition)

    @property
    def values(self) -> dict[str, str | int]:
        """The values of its columns."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Position:
    """The offset at which reading continues, and the record by which the topic is recognised."""

    partition_id: PartitionId
    next: int
    last_offset: int | None
    last_hash: bytes | None


def _match(partition_id: PartitionId) -> ColumnElement[bool]:
    return and_(*(kafka_partition.c[name] == value for name, value in partition_id.values.items()))


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
    if row is None:
        return None
    return Position(PartitionId.of(row), row.next, row.last_offset, row.last_hash)


async def open_partition(
    connection: AsyncConnection, partition_id: PartitionId, *, first: int
) -> None:
    """Open the account of a partition at its first offset; repeatable."""
    values = {**partition_id.values, "first": first, "next": first}
    await connection.execute(upsert(kafka_partition).values(values).on_conflict_do_nothing())


async def lock_at(connection: AsyncConnection, partition_id: PartitionId, lo: int) -> None:
    """Lock a partition's row. Raises ConsumerFenced if its next offset is not `lo`."""
    if await _lock(connection, partition_id) != lo:
        raise ConsumerFenced(f"{partition_id} is not at {lo} any more")


async def _lock(connection: AsyncConnection, partition_id: PartitionId) -> int | None:
    """Lock a partition's row, and return its next offset."""
    # Not FOR UPDATE: that would wait for everyone who adds a dead letter or a parked event.
    query = select(kafka_partition.c.next).where(_match(partition_id))
    return await connection.scalar(query.with_for_update(key_share=True))


async def lock_partitions(
    connection: AsyncConnection, partition_ids: Iterable[PartitionId]
) -> None:
    """Lock partitions' rows, in one order everywhere, and before all other rows."""
    for partition_id in sorted(set(partition_ids)):
        await _lock(connection, partition_id)


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


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a partition's log, and the arrival of the oldest record that is not written."""

    end_offset: int
    oldest_waiting_at: datetime | None


async def store_ends(connection: AsyncConnection, ends: Mapping[PartitionId, LogEnd]) -> None:
    """Store what an ingester has measured of its partitions; the newest measurement stays."""
    rows = [
        {
            **partition_id.values,
            "end_offset": end.end_offset,
            "oldest_waiting_at": end.oldest_waiting_at,
        }
        for partition_id, end in sorted(ends.items())  # in one order everywhere
    ]
    if not rows:
        return
    insertion = upsert(consumer_lag).values(rows)
    changes = {
        name: insertion.excluded[name]
        for name in ("end_offset", "oldest_waiting_at", "measured_at")
    }
    keys = consumer_lag.primary_key.columns
    await connection.execute(insertion.on_conflict_do_update(index_elements=keys, set_=changes))


class LostOffsets(Stored):
    """Offsets that the log dropped before they were read: from `lo`, below `hi`."""

    lo: int
    hi: int


class Account(Stored):
    """The books of one partition: `next - first` is the sum of what became of the offsets.

    A topic that is created again starts a new epoch.
    """

    cluster: str
    topic: str
    epoch: int
    partition: int
    first: int
    next: int
    stored: int
    duplicate: int
    dead: int
    dead_open: int
    dead_discarded: int
    """Letters that are decided about, also those that retention has removed."""
    parked: int
    expired: int
    erased_again: int
    lost: int
    not_delivered: int
    closes: bool
    """Every offset read has exactly one state."""
    lost_offsets: list[LostOffsets]
    updated_at: datetime
    waiting: int | None
    """Offsets from `next` to the end of the log, as it was at `lag_measured_at`; null: no ingester
    has measured it, or the topic was created again."""
    oldest_waiting_at: datetime | None
    """When the oldest of them came to Kafka, or earlier; null: none waits, or it is not known."""
    lag_measured_at: datetime | None
    """When an ingester last saw the end of the log; one that runs looks every 15 seconds."""

    @property
    def partition_id(self) -> PartitionId:
        """The partition."""
        return PartitionId.of(self)

    @property
    def counts(self) -> dict[Outcome, int]:
        """The number of offsets of each outcome."""
        return {outcome: getattr(self, outcome.value) for outcome in Outcome}


async def list_accounts(connection: AsyncConnection) -> list[Account]:
    """Return the account of every partition and epoch."""
    letters, here, lag = unsettled_event.c, kafka_partition.c, consumer_lag.c
    place = (letters.cluster, letters.topic, letters.epoch, letters.partition)
    waits = select(*place, func.count()).where(letters.state.in_(("open", "redrive")))
    dead_open = {
        PartitionId(*place): count
        for *place, count in await connection.execute(waits.group_by(*place))
    }
    lost: dict[PartitionId, list[LostOffsets]] = {}
    for row in await connection.execute(select(lost_offsets).order_by(lost_offsets.c.lo)):
        lost.setdefault(PartitionId.of(row), []).append(LostOffsets.model_validate(row))
    same = and_(*(here[name] == lag[name] for name in PartitionId._fields))
    measured = (lag.end_offset, lag.oldest_waiting_at, lag.measured_at)
    query = select(kafka_partition, *measured).outerjoin(consumer_lag, same)
    order = (here.cluster, here.topic, here.partition, here.epoch)
    rows = (await connection.execute(query.order_by(*order))).all()
    # of a topic that was created again, the older log has no end any more
    newest = {(row.cluster, row.topic, row.partition): row.epoch for row in rows}
    accounts = []
    for row in rows:
        partition_id = PartitionId.of(row)
        is_newest = newest[row.cluster, row.topic, row.partition] == row.epoch
        is_measured = is_newest and row.end_offset is not None
        waiting = max(0, row.end_offset - row.next) if is_measured else None
        own = {
            "dead_open": dead_open.get(partition_id, 0),
            "dead_discarded": row.dead - dead_open.get(partition_id, 0),
            "closes": sum(getattr(row, each.value) for each in Outcome) == row.next - row.first,
            "lost_offsets": lost.get(partition_id, []),
            "waiting": waiting,
            "oldest_waiting_at": row.oldest_waiting_at if waiting else None,
            "lag_measured_at": row.measured_at if is_newest else None,
        }
        accounts.append(Account(**{**row._mapping, **own}))
    return accounts
