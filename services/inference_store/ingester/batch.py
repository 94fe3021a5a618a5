"""A batch of the pipeline: records as read, and the offset range of each partition."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from opentelemetry.trace import INVALID_SPAN, Span

from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable


@dataclass(frozen=True, slots=True)
class MissingBlob:
    """The object for which an event waits; `detail` says if it waits for something else.

    `reason` is one of DEAD_LETTER_REASONS.
    """

    storage_key: str
    model_id: str
    inference_id: str
    detail: str = ""
    # The inference without the blob, which may be missing because the inference was erased.
    item: Indexable | None = None
    reason: str = "blob_missing"


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record, and the inference that was read from it, or why there is none."""

    record: Record
    result: Indexable | Rejection | MissingBlob


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """A partition that is assigned to this consumer, until `is_revoked`."""

    partition: int
    partition_id: PartitionId | None = None
    next: int = 0
    # The last record that was read: the topic is still the same if this record is still there.
    verify: tuple[int, bytes] | None = None
    is_revoked: bool = False
    # Seeking failed: it is not tried again before this (the loop's time).
    seek_at: float = 0.0
    # When offsets that hold no event were last passed (the loop's time).
    passed_at: float = 0.0
    # The next offset in Postgres, and the time of the record before it.
    written: int = 0
    written_at: datetime | None = None
    # What is read and not written: (hi, time of the first record) of each range.
    in_flight: deque[tuple[int, datetime]] = field(default_factory=deque)

    def note_written(self, hi: int, at: datetime | None) -> None:
        """Note that all below `hi` is written; `at` is the time of the last record, if any."""
        self.written, self.written_at = hi, at or self.written_at
        while self.in_flight and self.in_flight[0][0] <= hi:
            self.in_flight.popleft()


@dataclass(slots=True)
class OffsetRange:
    """The offsets [lo, hi) of one partition that a batch covers, and what is in them.

    It has no records if the offsets, at the log's end, hold only markers and aborted records.
    """

    assigned: AssignedPartition
    partition_id: PartitionId
    lo: int
    hi: int
    records: Sequence[Record]
    # None if the range holds no record
    last: tuple[int, bytes] | None
    lost: int = 0
    not_delivered: int = 0
    # producer → sequence numbers
    sequences: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """The offset ranges of several partitions, and their records as read."""

    ranges: list[OffsetRange]
    reads: list[ReadRecord] = field(default_factory=list)
    span: Span = INVALID_SPAN

    def drop_revoked(self) -> None:
        """Remove the ranges of partitions that are no longer assigned to this consumer."""
        self.ranges = [
            offset_range for offset_range in self.ranges if not offset_range.assigned.is_revoked
        ]
        partition_ids = {offset_range.partition_id for offset_range in self.ranges}
        self.reads = [read for read in self.reads if read.record.partition_id in partition_ids]
