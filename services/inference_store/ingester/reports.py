"""Reading what producers report of themselves: a small topic, apart from the pipeline.

No consumer group: every ingester reads all of it and writes what is newer. Reports are totals, so
reading one twice, or twice at once, changes nothing, and a group would need one more right and a
rebalance at each start. Where reading goes on, the reports kept in Postgres tell.
"""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.producer_reports import decode
from inference_store.platform.kafka import client_arguments
from inference_store.platform.metrics import REPORTS
from inference_store.platform.settings import IngesterSettings

from .backoff import Backoff, Stopped
from .closing import close_consumer
from .decompression import bound_decompression
from .record_batches import accept_unreadable_records, find_fault

OUTCOMES = ("kept", "old", "broken")
_MOST = 500
_MOST_BYTES = 64 * 1024
_FETCH_BYTES = 1024 * 1024
_POLL_SECONDS = 1.0
_ASSIGNMENT_SECONDS = 0.1
_KAFKA_SECONDS = 10.0
# How often it is looked whether the topic is there, and who fell silent.
_LOOK_SECONDS = 10.0
# Reports come every 10 seconds.
SILENT_AFTER = timedelta(seconds=60)
_log = structlog.get_logger()


class Reports:
    """Kafka's topic of reports → Postgres, until asked to stop. Nothing here stops the pipeline."""

    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        stop: asyncio.Event,
        *,
        silent_after: timedelta = SILENT_AFTER,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._stop = stop
        self._silent_after = silent_after
        self._look_seconds = look_seconds
        # Its own: that reports wait must not make the ingester unready.
        self._backoff = Backoff(stop, first_seconds=settings.ingester_retry_seconds)

    async def run(self) -> None:
        """While the topic is missing: look again now and then."""
        try:
            while not self._stop.is_set():
                await self._backoff.retry(self._read)
                await self._pause(self._look_seconds)
        except Stopped:
            return

    async def _read(self) -> None:
        """Read until stopped, or until there is no such topic. Raises KafkaError, DBAPIError."""
        accept_unreadable_records()
        bound_decompression()
        consumer = AIOKafkaConsumer(
            **client_arguments(self._settings),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=_FETCH_BYTES,
            retry_backoff_ms=500,
        )
        try:
            await _start(consumer)
            await self._follow(consumer)
        finally:
            await close_consumer(consumer)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        loop, looked_at = asyncio.get_running_loop(), -self._look_seconds
        placed: set[TopicPartition] = set()
        while not self._stop.is_set():
            if loop.time() - looked_at >= self._look_seconds:
                if not await self._is_there(consumer):
                    return
                if placed:
                    await self._mark_silent(consumer)
                looked_at = loop.time()
            if not consumer.assignment():
                # a read would wait without end for partitions that no broker has told
                await self._pause(_ASSIGNMENT_SECONDS)
                continue
            if consumer.assignment() - placed:
                await self._place(consumer)
                placed = set(consumer.assignment())
            polled = await consumer.getmany(timeout_ms=int(_POLL_SECONDS * 1000), max_records=_MOST)
            await self._keep(record for records in polled.values() for record in records)

    async def _is_there(self, consumer: AIOKafkaConsumer) -> bool:
        """Whether the topic exists, and we may see it; from then on it is subscribed to, again if
        its partitions are unknown: aiokafka asks once, and if Kafka is away not for five minutes.

        All topics are asked for: a question for this one alone could make it.
        """
        topic = self._settings.kafka_reports_topic
        if topic not in await consumer.topics():
            return False
        if not consumer.assignment():
            consumer.subscribe([topic])
        return True

    async def _place(self, consumer: AIOKafkaConsumer) -> None:
        """Go on behind the newest report kept; a partition without one from its beginning."""
        topic, cluster = self._settings.kafka_reports_topic, self._settings.kafka_cluster
        async with self._engine.connect() as connection:
            known = await accounting.find_report_positions(connection, cluster=cluster, topic=topic)
        for tp in consumer.assignment():
            if tp.partition in known:
                consumer.seek(tp, known[tp.partition])

    async def _keep(self, records: Iterable[ConsumerRecord]) -> None:
        found = [report for record in records for report in self._reports(record)]
        if not found:
            return

        async def write() -> int:
            async with self._engine.begin() as connection:
                return await accounting.store_reports(connection, found)

        # Here, with what is in hand: the consumer has moved past it.
        written = await self._backoff.retry(write)
        REPORTS.labels("kept").inc(written)
        REPORTS.labels("old").inc(len(found) - written)

    def _reports(self, record: ConsumerRecord) -> Iterator[ReceivedReport]:
        """The report of a record; none where it is broken, or of a producer long forgotten."""
        try:
            read = _read(record, self._settings.kafka_cluster)
        except ValueError as error:
            REPORTS.labels("broken").inc()
            _log.warning(
                "broken report",
                action="broken_report",
                partition=record.partition,
                offset=record.offset,
                error=str(error)[:300],
            )
            return
        if _time_of(record) >= datetime.now(UTC) - accounting.FORMER_AFTER:
            yield read
        else:
            REPORTS.labels("old").inc()

    async def _mark_silent(self, consumer: AIOKafkaConsumer) -> None:
        """Who has not reported for long is dead; but not while reports wait to be read."""
        if not await _is_at_end(consumer):
            return
        async with self._engine.begin() as connection:
            await accounting.mark_silent(connection, after=self._silent_after)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return


async def _start(consumer: AIOKafkaConsumer) -> None:
    """aiokafka itself may take 40 seconds, and hold up the end of the ingester."""
    try:
        async with asyncio.timeout(_KAFKA_SECONDS):
            await consumer.start()
    except TimeoutError as error:
        raise KafkaTimeoutError(f"no broker answers within {_KAFKA_SECONDS:g} s") from error


async def _is_at_end(consumer: AIOKafkaConsumer) -> bool:
    assigned = list(consumer.assignment())
    try:
        async with asyncio.timeout(_KAFKA_SECONDS):
            ends = await consumer.end_offsets(assigned)
            return all([await consumer.position(tp) >= ends[tp] for tp in assigned])
    except TimeoutError:
        return False


def _read(record: ConsumerRecord, cluster: str) -> ReceivedReport:
    """Raises ValueError where it is no report."""
    if (fault := find_fault(record)) is not None:
        raise ValueError(fault.detail)
    payload = bytes(record.value or b"")
    if len(payload) > _MOST_BYTES:
        raise ValueError(f"it has {len(payload)} bytes, and a report at most {_MOST_BYTES}")
    partition_id = PartitionId(cluster, record.topic, 0, record.partition)
    return ReceivedReport(decode(payload), partition_id, record.offset)


def _time_of(record: ConsumerRecord) -> datetime:
    """The record's time; now where there is none, or one that cannot be."""
    try:
        return datetime.fromtimestamp(max(record.timestamp, 0) / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return datetime.now(UTC)
