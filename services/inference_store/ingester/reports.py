"""Reads the reports of producers about themselves: a small topic, apart from the pipeline.

There is no consumer group: every ingester reads all reports and writes the newer ones. Reports are
totals, so reading one twice changes nothing, and a group would need one more right and a rebalance
at each start. The position at which reading continues comes from the reports in Postgres.
"""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.producer_reports import decode
from inference_store.ingester import record_batches
from inference_store.ingester.batch import read_time
from inference_store.ingester.failures import make_backoff
from inference_store.platform.backoff import Stopped, pause
from inference_store.platform.metrics import REPORTS
from inference_store.platform.settings import IngesterSettings

OUTCOMES = ("kept", "old", "broken")
_MOST = 500
_MOST_BYTES = 64 * 1024
_FETCH_BYTES = 1024 * 1024
_POLL_SECONDS = 1.0
_ASSIGNMENT_SECONDS = 0.1
_KAFKA_SECONDS = 10.0
# How often to check whether the topic exists, and which producers are silent.
_LOOK_SECONDS = 10.0
# Reports come every 10 seconds.
SILENT_AFTER = timedelta(seconds=60)
_log = structlog.get_logger()


class Reports:
    """Copies reports from Kafka to Postgres until stopped. It never stops the pipeline."""

    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        stop: asyncio.Event,
        *,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._stop = stop
        self._look_seconds = look_seconds
        # A backoff of its own: waiting for reports must not make the ingester unready.
        self._backoff = make_backoff(stop)

    async def run(self) -> None:
        """Run until stopped; while the topic is missing, check for it regularly."""
        try:
            while not self._stop.is_set():
                await self._backoff.retry(self._read)
                await pause(self._stop, self._look_seconds)
        except Stopped:
            return

    async def _read(self) -> None:
        consumer = record_batches.make_consumer(
            self._settings, group_id=None, max_partition_fetch_bytes=_FETCH_BYTES
        )
        try:
            async with record_batches.require_answer("Kafka", _KAFKA_SECONDS):
                await consumer.start()
            await self._follow(consumer)
        finally:
            await record_batches.close_consumer(consumer)

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        loop, looked_at = asyncio.get_running_loop(), -self._look_seconds
        sought: set[TopicPartition] = set()
        while not self._stop.is_set():
            if loop.time() - looked_at >= self._look_seconds:
                if not await self._is_there(consumer):
                    return
                if sought:
                    await self._mark_silent(consumer)
                looked_at = loop.time()
            if not consumer.assignment():
                # a read would wait forever for partitions that no broker has reported
                await pause(self._stop, _ASSIGNMENT_SECONDS)
                continue
            if consumer.assignment() - sought:
                await self._seek_newest(consumer)
                sought = set(consumer.assignment())
            polled = await consumer.getmany(timeout_ms=int(_POLL_SECONDS * 1000), max_records=_MOST)
            await self._keep(record for records in polled.values() for record in records)

    async def _is_there(self, consumer: AIOKafkaConsumer) -> bool:
        """Check whether the topic exists and is visible to us; if so, subscribe to it.

        It subscribes again while the partitions are unknown: aiokafka asks only once, and not for
        five minutes if Kafka is unavailable. It lists all topics, because asking for this one could
        create it.
        """
        topic = self._settings.kafka_reports_topic
        if topic not in await consumer.topics():
            return False
        if not consumer.assignment():
            consumer.subscribe([topic])
        return True

    async def _seek_newest(self, consumer: AIOKafkaConsumer) -> None:
        """Seek the offset after the newest stored report; without one, read from the beginning."""
        topic, cluster = self._settings.kafka_reports_topic, self._settings.kafka_cluster
        async with self._engine.connect() as connection:
            positions = await accounting.find_report_positions(
                connection, cluster=cluster, topic=topic
            )
        for tp in consumer.assignment():
            if tp.partition in positions:
                consumer.seek(tp, positions[tp.partition])

    async def _keep(self, records: Iterable[ConsumerRecord]) -> None:
        reports = [report for record in records for report in self._reports(record)]
        if not reports:
            return

        async def write() -> int:
            async with self._engine.begin() as connection:
                return await accounting.store_reports(connection, reports)

        # Retried here: the consumer has moved past these reports.
        written = await self._backoff.retry(write)
        REPORTS.labels("kept").inc(written)
        REPORTS.labels("old").inc(len(reports) - written)

    def _reports(self, record: ConsumerRecord) -> Iterator[ReceivedReport]:
        """Yield the report of a record, unless it is broken or of a long forgotten producer."""
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
        if read_time(record.timestamp) >= datetime.now(UTC) - accounting.FORMER_AFTER:
            yield read
        else:
            REPORTS.labels("old").inc()

    async def _mark_silent(self, consumer: AIOKafkaConsumer) -> None:
        """Mark producers without recent reports as dead, unless reports still wait in Kafka."""
        assigned = list(consumer.assignment())
        try:
            async with asyncio.timeout(_KAFKA_SECONDS):
                ends = await consumer.end_offsets(assigned)
                if not all([await consumer.position(tp) >= ends[tp] for tp in assigned]):
                    return
        except TimeoutError:
            return
        async with self._engine.begin() as connection:
            await accounting.mark_silent(connection, after=SILENT_AFTER)


def _read(record: ConsumerRecord, cluster: str) -> ReceivedReport:
    if (fault := record_batches.find_fault(record)) is not None:
        raise ValueError(fault.detail)
    payload = bytes(record.value or b"")
    if len(payload) > _MOST_BYTES:
        raise ValueError(f"it has {len(payload)} bytes, and a report at most {_MOST_BYTES}")
    partition_id = PartitionId(cluster, record.topic, 0, record.partition)
    return ReceivedReport(decode(payload), partition_id, record.offset)
