"""Reading the topic: assignment, positions from the books, and the offsets in between.

Kafka's own commits only serve lag tools. Where reading goes on is in Postgres, so after every
assignment a partition is first looked up there; until then nothing of it is read.
"""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import books
from inference_store.store.books import Place
from inference_store.store.metrics import ASSIGNED, EVENT_BYTES, LAG
from inference_store.store.records import Record
from inference_store.store.settings import IngesterSettings

from .batch import Assigned, Share
from .headers import headers_of
from .repeats import say_less
from .shares import hash_of, share_of

_FETCH_BYTES = 4 * 1024 * 1024
# While nothing comes, how often a broker is asked for a sign of life.
_ASK_SECONDS = 5.0
# No clock is so far ahead: a time beyond it is the producer's mistake.
_AHEAD = timedelta(hours=24)
_log = structlog.get_logger()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what Kafka gives and takes. What was taken is dropped: its rows were not written."""

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._topic.revoke(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._topic.assign(assigned)


class Topic:
    """The topic as this ingester sees it."""

    def __init__(self, settings: IngesterSettings, engine: AsyncEngine) -> None:
        self._settings = settings
        self._engine = engine
        self._assigned: dict[TopicPartition, Assigned] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._committed_at = 0.0
        self._heard_at = 0.0

    @property
    def assigned(self) -> Sequence[Assigned]:
        """The partitions that are ours now."""
        return tuple(self._assigned.values())

    @property
    def _kafka(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise KafkaError("not connected")
        return self._consumer

    async def start(self) -> None:
        """Connect and join the group. Raises KafkaError where no broker answers."""
        say_less("aiokafka")
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.kafka_bootstrap_servers,
            group_id=self._settings.kafka_group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            heartbeat_interval_ms=500,
            session_timeout_ms=10_000,
            max_poll_interval_ms=600_000,
            retry_backoff_ms=500,
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        consumer.subscribe([self._settings.kafka_topic], listener=_Listener(self))
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        self._consumer = consumer

    async def stop(self) -> None:
        """Leave the group. aiokafka does not call on_partitions_revoked here: we do."""
        if self._consumer is not None:
            await self._consumer.stop()
            self.revoke(list(self._assigned))
            self._consumer = None

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Kafka gave us these: nothing of them is read before they are placed."""
        for tp in partitions:
            self._assigned[tp] = Assigned(tp.partition)
        ASSIGNED.set(len(self._assigned))

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Kafka took these: what is in hand of them is dropped."""
        for tp in partitions:
            assigned = self._assigned.pop(tp, None)
            if assigned is not None:
                assigned.gone = True
        ASSIGNED.set(len(self._assigned))

    def look_again(self, assigned: Assigned) -> None:
        """Drop what is in hand of a partition, and place it anew from the books."""
        assigned.gone = True
        tp = TopicPartition(self._settings.kafka_topic, assigned.partition)
        if self._assigned.get(tp) is assigned:
            self._assigned[tp] = Assigned(tp.partition)

    async def poll(self) -> list[Share]:
        """The next records of every partition that is ours; empty where there are none."""
        for tp, assigned in list(self._assigned.items()):
            if assigned.place is None:
                await self._place(tp, assigned)
        try:
            return await self._shares()
        except BaseException:
            # What was fetched may be in nobody's hands now, and would look like a gap.
            for assigned in self.assigned:
                self.look_again(assigned)
            raise

    async def _shares(self) -> list[Share]:
        timeout = int(self._settings.ingester_poll_seconds * 1000)
        try:
            polled = await self._kafka.getmany(
                timeout_ms=timeout, max_records=self._settings.ingester_batch_events
            )
        except (IllegalStateError, ValueError) as error:
            # A rebalance in between; or a record that aiokafka cannot read (a header's name
            # that is not UTF-8): the line waits and says so, for nothing of it can be kept.
            raise KafkaError(f"{type(error).__name__}: {error}") from error
        await self._listen(bool(polled))
        shares = [await self._share(tp, records) for tp, records in polled.items()]
        return [share for share in shares if share is not None]

    async def _listen(self, heard: bool) -> None:
        """Raise KafkaError where no broker answers: aiokafka itself would stay silent for ever."""
        now = asyncio.get_running_loop().time()
        if not heard:
            if now - self._heard_at < _ASK_SECONDS:
                return
            await self._kafka.topics()
        self._heard_at = now

    async def _place(self, tp: TopicPartition, assigned: Assigned) -> None:
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
        begins = await self._kafka.beginning_offsets([tp])
        ends = await self._kafka.end_offsets([tp])
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
        assigned.next = next
        assigned.place = place

    async def _share(self, tp: TopicPartition, records: Sequence[ConsumerRecord]) -> Share | None:
        assigned = self._assigned.get(tp)
        if assigned is None or assigned.place is None or not records:
            return None
        if assigned.verify is not None and not await self._verified(tp, assigned, records[0]):
            return None
        fresh = [record for record in records if record.offset >= assigned.next]
        if not fresh:
            # Only the record that was verified, or offsets went back: the topic is new.
            if records[0].offset < assigned.next - 1:
                self.look_again(assigned)
            return None
        return await self._accounted(tp, assigned, assigned.place, fresh)

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
        LAG.labels(str(tp.partition)).set(max(0, (self._kafka.highwater(tp) or hi) - hi))
        return share

    async def commit(self, shares: Iterable[Share], *, force: bool = False) -> None:
        """Tell Kafka how far we are, at most once a second: lag tools look there."""
        now = asyncio.get_running_loop().time()
        if not force and now - self._committed_at < 1.0:
            return
        topic = self._settings.kafka_topic
        offsets = {TopicPartition(topic, s.assigned.partition): s.hi for s in shares}
        self._committed_at = now
        try:
            await self._kafka.commit(offsets)
        except (KafkaError, IllegalStateError) as error:  # it counts in Postgres alone
            _log.debug("kafka commit refused", action="kafka_commit", error=str(error))


def _record(place: Place, record: ConsumerRecord) -> Record:
    headers = headers_of(record.headers)
    at = _time_of(record.timestamp)
    return Record(place, record.offset, at, record.key, record.value or b"", headers)


def _time_of(milliseconds: int | None) -> datetime:
    """The record's time; now where the producer gave none, or one that cannot be."""
    now = datetime.now(UTC)
    if milliseconds is None or milliseconds <= 0:
        return now
    try:
        return min(datetime.fromtimestamp(milliseconds / 1000, UTC), now + _AHEAD)
    except (ValueError, OverflowError, OSError):
        return now
