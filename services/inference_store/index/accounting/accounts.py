"""The accounts of the partitions: the counts of outcomes, and whether they add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import kafka_partition, lost_offsets, unsettled_event

from .lag import MeasuredEnd, find_ends
from .partition_id import Outcome, PartitionId


@dataclass(frozen=True, slots=True)
class Account:
    """One partition's account: `next - first` is the sum of all counts."""

    partition_id: PartitionId
    first: int
    next: int
    began: str
    counts: Mapping[Outcome, int]
    dead_open: int
    dead_discarded: int
    lost: Sequence[tuple[int, int]]
    updated_at: datetime
    end: MeasuredEnd | None
    """Where the log ends, as an ingester saw it; None: none has measured it."""

    @property
    def waiting(self) -> int | None:
        """The number of offsets of the measured log that are not in the account yet."""
        return None if self.end is None else max(0, self.end.end_offset - self.next)

    @property
    def oldest_waiting_at(self) -> datetime | None:
        """When the oldest of them came, as it was measured."""
        return self.end.oldest_waiting_at if self.end is not None and self.waiting else None

    @property
    def lag_measured_at(self) -> datetime | None:
        """When the end of the log was measured."""
        return None if self.end is None else self.end.measured_at

    @property
    def closes(self) -> bool:
        """Check whether every offset read has exactly one state."""
        return sum(self.counts.values()) == self.next - self.first


async def list_accounts(connection: AsyncConnection) -> list[Account]:
    """Return the account of every partition and epoch."""
    dead_open = await _count_open(connection)
    lost = await _find_lost(connection)
    order = (kafka_partition.c[name] for name in ("cluster", "topic", "partition", "epoch"))
    rows = (await connection.execute(select(kafka_partition).order_by(*order))).all()
    # of a topic that was created again, the older log has no end any more
    newest = {(row.cluster, row.topic, row.partition): row.epoch for row in rows}
    ends = {
        of: end
        for of, end in (await find_ends(connection)).items()
        if newest.get((of.cluster, of.topic, of.partition)) == of.epoch
    }
    return [_build_account(row, dead_open, lost, ends) for row in rows]


def _build_account(
    row: Row[tuple[object, ...]],
    dead_open: Mapping[PartitionId, int],
    lost: Mapping[PartitionId, Sequence[tuple[int, int]]],
    ends: Mapping[PartitionId, MeasuredEnd],
) -> Account:
    partition_id = PartitionId(row.cluster, row.topic, row.epoch, row.partition)
    # A discarded letter counts as discarded also after retention has removed it.
    open = dead_open.get(partition_id, 0)
    return Account(
        partition_id=partition_id,
        first=row.first,
        next=row.next,
        began=row.began,
        counts={outcome: getattr(row, outcome.value) for outcome in Outcome},
        dead_open=open,
        dead_discarded=row.dead - open,
        lost=lost.get(partition_id, ()),
        updated_at=row.updated_at,
        end=ends.get(partition_id),
    )


async def _count_open(connection: AsyncConnection) -> dict[PartitionId, int]:
    here = unsettled_event.c
    place = (here.cluster, here.topic, here.epoch, here.partition)
    waiting = here.state.in_(("open", "redrive"))
    rows = await connection.execute(select(*place, func.count()).where(waiting).group_by(*place))
    return {PartitionId(*place): count for *place, count in rows}


async def _find_lost(connection: AsyncConnection) -> dict[PartitionId, list[tuple[int, int]]]:
    lost: dict[PartitionId, list[tuple[int, int]]] = {}
    for row in await connection.execute(select(lost_offsets).order_by(lost_offsets.c.lo)):
        partition_id = PartitionId(row.cluster, row.topic, row.epoch, row.partition)
        lost.setdefault(partition_id, []).append((row.lo, row.hi))
    return lost
