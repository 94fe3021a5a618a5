"""A consumer of a log in memory: a Kafka for the pipeline, without Kafka."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record
from inference_store.ingester.batch import AssignedPartition, OffsetRange, build_range

_TOPIC = "events"


@dataclass
class MemoryLog:
    """A topic, and the offsets that a group of one consumer has written."""

    partitions: int = 1
    records: dict[int, list[Record]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)

    def append(self, partition: int, payload: bytes) -> None:
        """Add a record at the end of a partition."""
        records = self.records.setdefault(partition, [])
        partition_id, at = PartitionId("memory", _TOPIC, 0, partition), datetime.now(UTC)
        records.append(Record(partition_id, len(records), at, None, payload, ()))


class MemoryConsumer:
    """A `Consumer` that has every partition of a log."""

    def __init__(self, log: MemoryLog, *, most: int = 1000) -> None:
        self._log = log
        self._most = most
        self._assigned: dict[int, AssignedPartition] = {}

    @property
    def assigned(self) -> Sequence[AssignedPartition]:
        """See Consumer."""
        return tuple(self._assigned.values())

    async def start(self) -> None:
        """See Consumer."""
        self._assigned = {n: AssignedPartition(n) for n in range(self._log.partitions)}

    async def stop(self) -> None:
        """See Consumer."""
        for assigned in self.assigned:
            assigned.is_revoked = True
        self._assigned = {}

    def reset(self, assigned: AssignedPartition) -> None:
        """See Consumer."""
        assigned.is_revoked = True
        if self._assigned.get(assigned.partition) is assigned:
            self._assigned[assigned.partition] = AssignedPartition(assigned.partition)

    async def poll(self) -> list[OffsetRange]:
        """See Consumer."""
        ranges = [self._read(assigned) for assigned in self.assigned]
        present = [offset_range for offset_range in ranges if offset_range is not None]
        if not present:
            await asyncio.sleep(0)
        return present

    async def find_ends(self) -> dict[AssignedPartition, int]:
        """See Consumer."""
        readable = [assigned for assigned in self.assigned if assigned.partition_id is not None]
        return {
            assigned: len(self._log.records.get(assigned.partition, ())) for assigned in readable
        }

    async def commit(self, ranges: Iterable[OffsetRange]) -> None:
        """See Consumer."""

    def _read(self, assigned: AssignedPartition) -> OffsetRange | None:
        if assigned.partition_id is None:
            assigned.partition_id = PartitionId("memory", _TOPIC, 0, assigned.partition)
            assigned.next = assigned.written = self._log.written.get(assigned.partition, 0)
        log_records = self._log.records.get(assigned.partition, [])
        records, lo = log_records[assigned.next : assigned.next + self._most], assigned.next
        if not records:
            return None
        assigned.next += len(records)
        assigned.in_flight.append((assigned.next, records[0].time))
        return build_range(assigned, assigned.partition_id, lo=lo, lost=0, records=records)
