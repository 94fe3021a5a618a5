"""A batch of the pipeline: records as read, the offset range of each partition, and who reads."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Protocol

from opentelemetry.trace import INVALID_SPAN, Span

from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable
from inference_store.ingester.record_batches import escape_surrogates


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


class Consumer(Protocol):
    """One member of a group of consumers. Each partition of a topic is assigned to one member.

    Every method that calls the broker raises KafkaError while it is unavailable, and is retried.
    `tests/consumer_contract.py` has the other rules of an implementation.
    """

    @property
    def assigned(self) -> Sequence[AssignedPartition]:
        """The partitions that are assigned now."""

    async def start(self) -> None:
        """Connect and join the group."""

    async def stop(self) -> None:
        """Leave the group, and revoke all partitions; nothing happens if it has not started."""

    def reset(self, assigned: AssignedPartition) -> None:
        """Drop the in-flight records of a partition, and continue after the written ones."""

    async def poll(self) -> list[OffsetRange]:
        """Return the next records of every assigned partition; empty if none come for a while.

        It is called again at once, so it waits a little for records. The ranges of a
        partition follow each other without a gap, after the written offsets.
        """

    async def find_ends(self) -> dict[AssignedPartition, int]:
        """Return the end offset of each readable partition."""

    async def commit(self, ranges: Iterable[OffsetRange]) -> None:
        """Tell the broker the written offsets, for lag tools; it never fails."""


_MOST = 32
_LONGEST = 1024
_LONGEST_PRODUCER = 256
Headers = Sequence[tuple[str, str]]


def read_headers(raw: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return headers as text that Postgres can store, cut at the caps."""
    return tuple((_text(escape_surrogates(name)), _value(value)) for name, value in raw[:_MOST])


def read_sequence(headers: Headers) -> tuple[str, int] | None:
    """Return the producer and its sequence number, if both exist and are valid; else None."""
    values = dict(headers)
    producer, number = values.get("producer"), values.get("sequence", "")
    if not producer or len(producer) > _LONGEST_PRODUCER:
        return None
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return producer, int(number)


def _value(value: bytes | None) -> str:
    return _text((value or b"")[:_LONGEST].decode("utf-8", "replace"))


def _text(text: str) -> str:
    return text[:_LONGEST].replace("\0", "\ufffd")


def hash_record(record: Record) -> bytes:
    """Return the 16 bytes by which a record is recognised when its topic is read again."""
    digest = blake2b(digest_size=16)
    for part in (record.key or b"", record.payload):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def build_range(
    assigned: AssignedPartition,
    partition_id: PartitionId,
    *,
    lo: int,
    lost: int,
    records: Sequence[Record],
) -> OffsetRange:
    """Return the range from `lo` to the last of `records`, whose first `lost` offsets are lost.

    Offsets that are neither lost nor a record were not delivered: markers, aborted, compacted.
    """
    hi = records[-1].offset + 1
    sequences: dict[str, list[int]] = {}
    for record in records:
        if (sequence := read_sequence(record.headers)) is not None:
            producer, number = sequence
            sequences.setdefault(producer, []).append(number)
    return OffsetRange(
        assigned=assigned,
        partition_id=partition_id,
        lo=lo,
        hi=hi,
        records=records,
        last=(records[-1].offset, hash_record(records[-1])),
        lost=lost,
        not_delivered=hi - lo - lost - len(records),
        sequences=sequences,
    )


def build_passed_range(
    assigned: AssignedPartition, partition_id: PartitionId, *, lo: int, hi: int, lost: int
) -> OffsetRange:
    """Return the range of offsets for which no record will ever be delivered."""
    return OffsetRange(
        assigned=assigned,
        partition_id=partition_id,
        lo=lo,
        hi=hi,
        records=(),
        last=None,
        lost=lost,
        not_delivered=hi - lo - lost,
    )
