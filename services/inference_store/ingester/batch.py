"""A batch of the pipeline: records as read, and the offset range of each partition.

Below: where reading continues, and how every offset up to new records is accounted for.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError
from opentelemetry.trace import INVALID_SPAN, Span
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.unsettled import Record, Rejection
from inference_store.index.writing import Indexable
from inference_store.ingester.record_batches import find_fault, require_answer
from inference_store.platform.metrics import EVENT_BYTES
from inference_store.platform.settings import IngesterSettings


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
    result: Indexable | Rejection | MissingBlob | Outcome
    """Outcome: of ground truth, which is written already."""


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """A partition that is assigned to this consumer, until `is_revoked`."""

    tp: TopicPartition
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


_MOST = 32
_LONGEST = 1024
_LONGEST_PRODUCER = 256
Headers = Sequence[tuple[str, str]]


def read_headers(raw: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return headers as text that Postgres can store, cut at the caps."""
    texts = (
        (name, (value or b"")[:_LONGEST].decode("utf-8", "replace")) for name, value in raw[:_MOST]
    )
    return tuple((_cut(name), _cut(value)) for name, value in texts)


def read_sequence(headers: Headers) -> tuple[str, int] | None:
    """Return the producer and its sequence number, if both exist and are valid; else None."""
    values = dict(headers)
    producer, number = values.get("producer"), values.get("sequence", "")
    if not producer or len(producer) > _LONGEST_PRODUCER:
        return None
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return producer, int(number)


def _cut(text: str) -> str:
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
    records: Sequence[Record] = (),
    hi: int = 0,
) -> OffsetRange:
    """Return the range from `lo` to the last of `records`, whose first `lost` offsets are lost;
    without records, to `hi`: none will ever be delivered for it.

    Offsets that are neither lost nor a record were not delivered: markers, aborted, compacted.
    """
    hi = records[-1].offset + 1 if records else hi
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
        last=(records[-1].offset, hash_record(records[-1])) if records else None,
        lost=lost,
        not_delivered=hi - lo - lost - len(records),
        sequences=sequences,
    )


# Finds the offset at which reading continues, and accounts for every offset up to new records.
#
# Kafka's own commits only serve lag tools: the position is read from Postgres after every
# assignment. The last record that was read shows whether the topic is still the same.

# No clock is this far ahead: a later time is the producer's mistake.
_AHEAD = timedelta(hours=24)
# How often offsets without an event are passed, at most: each time is a transaction.
_PASS_SECONDS = 5.0
_ASK_SECONDS = 1.0
_BOUNDS_SECONDS = 5.0
_log = structlog.get_logger()


class OffsetsWentBack(Exception):
    """A partition has offsets that were read long ago: its topic was created again."""


class Positions:
    """The positions of one connected consumer."""

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, kafka: AIOKafkaConsumer
    ) -> None:
        self._settings = settings
        self._engine = engine
        self.kafka = kafka

    async def seek(self, tp: TopicPartition, assigned: AssignedPartition) -> None:
        """Find the offset at which reading of a partition continues, and seek it."""
        begins, ends = await self._find_bounds(tp)
        async with self._engine.connect() as connection:
            position = await accounting.find_position(
                connection,
                cluster=self._settings.kafka_cluster,
                topic=tp.topic,
                partition=tp.partition,
            )
        if position is None:
            await self._open(tp, assigned, epoch=0, first=begins)
            return
        partition_id, last = position.partition_id, position.last_offset
        if position.next > ends:
            await self._open(tp, assigned, epoch=partition_id.epoch + 1, first=begins)
        elif last is not None and position.last_hash and last >= begins:
            assigned.verify = (last, position.last_hash)
            self._go(tp, assigned, partition_id, position.next, seek=last)
        else:
            if last is not None:
                _log.warning("topic unverified", action="unverified", partition=tp.partition)
            self._go(tp, assigned, partition_id, position.next, seek=position.next)

    async def _find_bounds(self, tp: TopicPartition) -> tuple[int, int]:
        async with require_answer(f"the leader of partition {tp.partition}", _BOUNDS_SECONDS):
            begins = await self.kafka.beginning_offsets([tp])
            ends = await self.kafka.end_offsets([tp])
        return begins[tp], ends[tp]

    async def _open(
        self, tp: TopicPartition, assigned: AssignedPartition, *, epoch: int, first: int
    ) -> None:
        partition_id = PartitionId(self._settings.kafka_cluster, tp.topic, epoch, tp.partition)
        if epoch:
            _log.warning(
                "topic created again", action="new_epoch", partition=tp.partition, epoch=epoch
            )
        async with self._engine.begin() as connection:
            await accounting.open_partition(connection, partition_id, first=first)
        assigned.verify = None
        self._go(tp, assigned, partition_id, first, seek=first)

    def _go(
        self,
        tp: TopicPartition,
        assigned: AssignedPartition,
        partition_id: PartitionId,
        next: int,
        *,
        seek: int,
    ) -> None:
        if assigned.is_revoked:
            return
        try:
            self.kafka.seek(tp, seek)
        except IllegalStateError:  # revoked a moment ago
            return
        assigned.next = assigned.written = next
        assigned.partition_id = partition_id

    async def build_range(
        self, tp: TopicPartition, assigned: AssignedPartition, records: Sequence[ConsumerRecord]
    ) -> OffsetRange | None:
        """Return the range of newly fetched records; None if there is nothing new in them.

        Raises OffsetsWentBack if the topic must be a new one.
        """
        if assigned.partition_id is None or not records:
            return None
        last_read = None if assigned.verify is None else assigned.verify[0]
        if last_read is not None and not await self._verify(tp, assigned, records[0]):
            return None
        new = [record for record in records if record.offset >= assigned.next]
        if not new:
            # Only the verified record, or the offsets went back: then the topic is new.
            if records[0].offset != last_read and records[0].offset < assigned.next - 1:
                raise OffsetsWentBack
            return None
        partition_id, lost = assigned.partition_id, 0
        lo, first, hi = assigned.next, new[0].offset, new[-1].offset + 1
        if first > lo:
            begins, _ = await self._find_bounds(tp)
            lost = max(0, min(begins, first) - lo)
        built = [_build_record(partition_id, record) for record in new]
        assigned.next = hi
        EVENT_BYTES.inc(sum(len(record.payload) for record in built))
        assigned.in_flight.append((hi, built[0].time))
        return build_range(assigned, partition_id, lo=lo, lost=lost, records=built)

    async def build_passed_range(
        self, tp: TopicPartition, assigned: AssignedPartition
    ) -> OffsetRange | None:
        """Return the range of offsets that were passed without an event; None if there are none.

        They are markers and aborted records at the log's end. If no later record accounts for them
        before they age out, they would look lost.
        """
        now = asyncio.get_running_loop().time()
        partition_id = assigned.partition_id
        if (
            partition_id is None
            or assigned.verify is not None
            or now - assigned.passed_at < _PASS_SECONDS
        ):
            return None
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                hi = int(await self.kafka.position(tp))
        except (IllegalStateError, TimeoutError):  # revoked, or the consumer is seeking
            return None
        lo = assigned.next
        if hi <= lo or assigned.is_revoked:
            return None
        # If the log was cut in between, the consumer was sent to its new start.
        begins, _ = await self._find_bounds(tp)
        assigned.next, assigned.passed_at = hi, now
        lost = max(0, min(begins, hi) - lo)
        return build_range(assigned, partition_id, lo=lo, hi=hi, lost=lost)

    async def _verify(
        self, tp: TopicPartition, assigned: AssignedPartition, record: ConsumerRecord
    ) -> bool:
        offset, hash = assigned.verify or (0, b"")
        assigned.verify = None
        partition_id = assigned.partition_id
        if partition_id is None or record.offset != offset:
            return True
        if hash_record(_build_record(partition_id, record)) != hash:
            begins, _ = await self._find_bounds(tp)
            await self._open(tp, assigned, epoch=partition_id.epoch + 1, first=begins)
            return False
        return True


def _build_record(partition_id: PartitionId, record: ConsumerRecord) -> Record:
    headers = read_headers(record.headers)
    at = read_time(record.timestamp)
    payload = bytes(record.value or b"")
    return Record(partition_id, record.offset, at, record.key, payload, headers, find_fault(record))


def read_time(milliseconds: int | None) -> datetime:
    """Return the record's time; now if the producer gave none, or an impossible one."""
    now = datetime.now(UTC)
    if milliseconds is None or milliseconds <= 0:
        return now
    try:
        return min(datetime.fromtimestamp(milliseconds / 1000, UTC), now + _AHEAD)
    except (ValueError, OverflowError, OSError):
        return now
