"""Where reading goes on, and what lies between there and the records that come.

Kafka's own commits only serve lag tools: the books are asked after every assignment. The last
record read tells whether the topic is still the same.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import books
from inference_store.index.books import Place
from inference_store.index.records import Record
from inference_store.platform.metrics import EVENT_BYTES
from inference_store.platform.settings import IngesterSettings

from .batch import Assigned, Share
from .headers import headers_of
from .record_batches import fault_of
from .shares import hash_of, passed_share, share_of

# No clock is so far ahead: a time beyond it is the producer's mistake.
_AHEAD = timedelta(hours=24)
# How often offsets without an event are moved past, at most: each time is a transaction.
_PASS_SECONDS = 5.0
_ASK_SECONDS = 1.0
# aiokafka itself would wait for 40: meanwhile nothing else is read.
_BOUNDS_SECONDS = 5.0
_log = structlog.get_logger()


class OffsetsWentBack(Exception):
    """A partition gave offsets that were read long ago: its topic was made anew."""


class Positions:
    """The positions of one connected consumer."""

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, kafka: AIOKafkaConsumer
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._kafka = kafka

    async def place(self, tp: TopicPartition, assigned: Assigned) -> None:
        """Find where reading goes on, and go there."""
        begins, ends = await self._bounds(tp)
        async with self._engine.connect() as connection:
            found = await books.position(
                connection,
                cluster=self._settings.kafka_cluster,
                topic=tp.topic,
                partition=tp.partition,
            )
        if found is None:
            await self._open(tp, assigned, epoch=0, first=begins, began="first")
        elif found.next > ends:
            await self._open(tp, assigned, epoch=found.place.epoch + 1, first=begins, began="anew")
        elif found.last_offset is not None and found.last_hash and found.last_offset >= begins:
            assigned.verify = (found.last_offset, found.last_hash)
            self._go(tp, assigned, found.place, found.next, seek=found.last_offset)
        else:
            if found.last_offset is not None:
                _log.warning("topic unverified", action="unverified", partition=tp.partition)
            self._go(tp, assigned, found.place, found.next, seek=found.next)

    async def _bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Where the log begins and ends. Raises KafkaError, also where its leader is too slow."""
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
        self, tp: TopicPartition, assigned: Assigned, *, epoch: int, first: int, began: str
    ) -> None:
        place = Place(self._settings.kafka_cluster, tp.topic, epoch, tp.partition)
        if began == "anew":
            _log.warning("topic made anew", action="new_epoch", partition=tp.partition, epoch=epoch)
        async with self._engine.begin() as connection:
            await books.begin(connection, place, first=first, began=began)
        assigned.verify = None
        self._go(tp, assigned, place, first, seek=first)

    def _go(
        self, tp: TopicPartition, assigned: Assigned, place: Place, next: int, *, seek: int
    ) -> None:
        if assigned.gone:
            return
        try:
            self._kafka.seek(tp, seek)
        except IllegalStateError:  # taken from us a moment ago
            return
        assigned.next = assigned.written = next
        assigned.place = place

    async def share(
        self, tp: TopicPartition, assigned: Assigned, records: Sequence[ConsumerRecord]
    ) -> Share | None:
        """The share that newly fetched records are; None where there is nothing new in them.

        Raises OffsetsWentBack where the topic must be a new one.
        """
        if assigned.place is None or not records:
            return None
        known = None if assigned.verify is None else assigned.verify[0]
        if known is not None and not await self._verified(tp, assigned, records[0]):
            return None
        fresh = [record for record in records if record.offset >= assigned.next]
        if not fresh:
            # Only the record that was verified, or offsets went back: the topic is new.
            if records[0].offset != known and records[0].offset < assigned.next - 1:
                raise OffsetsWentBack
            return None
        return await self._accounted(tp, assigned, assigned.place, fresh)

    async def passed(self, tp: TopicPartition, assigned: Assigned) -> Share | None:
        """The share of offsets that the consumer has passed without an event; None: there are none.

        Markers and aborted records at the log's end. No later record would account for them
        before they age out, and then they would look lost.
        """
        now = asyncio.get_running_loop().time()
        place = assigned.place
        if place is None or assigned.verify is not None or now - assigned.passed_at < _PASS_SECONDS:
            return None
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                hi = int(await self._kafka.position(tp))
        except (IllegalStateError, TimeoutError):  # taken from us, or being placed
            return None
        lo = assigned.next
        if hi <= lo or assigned.gone:
            return None
        # Where the log was cut in between, the consumer was sent to its new start.
        begins, _ = await self._bounds(tp)
        assigned.next, assigned.passed_at = hi, now
        return passed_share(assigned, place, lo=lo, hi=hi, lost=max(0, min(begins, hi) - lo))

    async def _verified(
        self, tp: TopicPartition, assigned: Assigned, record: ConsumerRecord
    ) -> bool:
        """Whether the topic is the one that was read before; else a new epoch begins."""
        offset, hash = assigned.verify or (0, b"")
        assigned.verify = None
        place = assigned.place
        if place is None or record.offset != offset:
            return True
        if hash_of(_record(place, record)) != hash:
            begins, _ = await self._bounds(tp)
            await self._open(tp, assigned, epoch=place.epoch + 1, first=begins, began="anew")
            return False
        return True

    async def _accounted(
        self,
        tp: TopicPartition,
        assigned: Assigned,
        place: Place,
        records: Sequence[ConsumerRecord],
    ) -> Share:
        """The share, with every offset from the last one read accounted for."""
        lo, first, hi = assigned.next, records[0].offset, records[-1].offset + 1
        lost = 0
        if first > lo:
            begins, _ = await self._bounds(tp)
            lost = max(0, min(begins, first) - lo)
        found = [_record(place, record) for record in records]
        share = share_of(assigned, place, lo=lo, lost=lost, records=found)
        assigned.next = hi
        EVENT_BYTES.inc(sum(len(record.payload) for record in share.records))
        assigned.in_hand.append((hi, found[0].time))
        return share


def _record(place: Place, record: ConsumerRecord) -> Record:
    headers = headers_of(record.headers)
    at = _time_of(record.timestamp)
    payload = bytes(record.value or b"")
    return Record(place, record.offset, at, record.key, payload, headers, fault_of(record))


def _time_of(milliseconds: int | None) -> datetime:
    """The record's time; now where the producer gave none, or one that cannot be."""
    now = datetime.now(UTC)
    if milliseconds is None or milliseconds <= 0:
        return now
    try:
        return min(datetime.fromtimestamp(milliseconds / 1000, UTC), now + _AHEAD)
    except (ValueError, OverflowError, OSError):
        return now
