"""Finds the offset at which reading continues, and accounts for every offset up to new records.

Kafka's own commits only serve lag tools: the position is read from Postgres after every
assignment. The last record that was read shows whether the topic is still the same.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Record
from inference_store.ingester.batch import (
    AssignedPartition,
    OffsetRange,
    build_passed_range,
    build_range,
    hash_record,
    read_headers,
)
from inference_store.ingester.record_batches import find_fault
from inference_store.platform.metrics import EVENT_BYTES
from inference_store.platform.settings import IngesterSettings

# No clock is this far ahead: a later time is the producer's mistake.
_AHEAD = timedelta(hours=24)
# How often offsets without an event are passed, at most: each time is a transaction.
_PASS_SECONDS = 5.0
_ASK_SECONDS = 1.0
# aiokafka itself would wait for 40: meanwhile nothing else is read.
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
        self._kafka = kafka

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
            await self._open(tp, assigned, epoch=0, first=begins, began="first")
            return
        partition_id, last = position.partition_id, position.last_offset
        if position.next > ends:
            await self._open(tp, assigned, epoch=partition_id.epoch + 1, first=begins, began="anew")
        elif last is not None and position.last_hash and last >= begins:
            assigned.verify = (last, position.last_hash)
            self._go(tp, assigned, partition_id, position.next, seek=last)
        else:
            if last is not None:
                _log.warning("topic unverified", action="unverified", partition=tp.partition)
            self._go(tp, assigned, partition_id, position.next, seek=position.next)

    async def _find_bounds(self, tp: TopicPartition) -> tuple[int, int]:
        try:
            async with asyncio.timeout(_BOUNDS_SECONDS):
                begins = await self._kafka.beginning_offsets([tp])
                ends = await self._kafka.end_offsets([tp])
        except TimeoutError as error:
            raise KafkaTimeoutError(
                f"the leader of partition {tp.partition} does not answer"
                f" within {_BOUNDS_SECONDS:g} s"
            ) from error
        return begins[tp], ends[tp]

    async def _open(
        self, tp: TopicPartition, assigned: AssignedPartition, *, epoch: int, first: int, began: str
    ) -> None:
        partition_id = PartitionId(self._settings.kafka_cluster, tp.topic, epoch, tp.partition)
        if began == "anew":
            _log.warning(
                "topic created again", action="new_epoch", partition=tp.partition, epoch=epoch
            )
        async with self._engine.begin() as connection:
            await accounting.open_partition(connection, partition_id, first=first, began=began)
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
            self._kafka.seek(tp, seek)
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
        return await self._account_for(tp, assigned, assigned.partition_id, new)

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
                hi = int(await self._kafka.position(tp))
        except (IllegalStateError, TimeoutError):  # revoked, or the consumer is seeking
            return None
        lo = assigned.next
        if hi <= lo or assigned.is_revoked:
            return None
        # If the log was cut in between, the consumer was sent to its new start.
        begins, _ = await self._find_bounds(tp)
        assigned.next, assigned.passed_at = hi, now
        lost = max(0, min(begins, hi) - lo)
        return build_passed_range(assigned, partition_id, lo=lo, hi=hi, lost=lost)

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
            await self._open(tp, assigned, epoch=partition_id.epoch + 1, first=begins, began="anew")
            return False
        return True

    async def _account_for(
        self,
        tp: TopicPartition,
        assigned: AssignedPartition,
        partition_id: PartitionId,
        records: Sequence[ConsumerRecord],
    ) -> OffsetRange:
        lo, first, hi = assigned.next, records[0].offset, records[-1].offset + 1
        lost = 0
        if first > lo:
            begins, _ = await self._find_bounds(tp)
            lost = max(0, min(begins, first) - lo)
        built = [_build_record(partition_id, record) for record in records]
        assigned.next = hi
        EVENT_BYTES.inc(sum(len(record.payload) for record in built))
        assigned.in_flight.append((hi, built[0].time))
        return build_range(assigned, partition_id, lo=lo, lost=lost, records=built)


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
