"""Build the ingester from its settings, and run it until it is asked to stop."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial

import structlog
from aiokafka.errors import IllegalStateError, KafkaError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.index import accounting, partitions
from inference_store.index.accounting import LogEnd, PartitionId, store_ends
from inference_store.index.database import (
    PostgresUnavailable,
    create_engine,
    end_stalled_sessions,
    is_replaced,
    lacks_table,
    refuse_another_database,
)
from inference_store.index.dictionary import Dictionary
from inference_store.index.schema import require_schema
from inference_store.inference.errors import SchemaBehind
from inference_store.inference.events import DEAD_LETTER_REASONS
from inference_store.ingester.batch import AssignedPartition
from inference_store.ingester.failures import SERVERS, make_backoff
from inference_store.ingester.kafka_consumer import KafkaConsumer
from inference_store.ingester.reader import Reader, Retries
from inference_store.ingester.writer import Writer
from inference_store.objects import Blobs
from inference_store.operations import figures
from inference_store.operations.figures import compute_age
from inference_store.platform import metrics
from inference_store.platform.admin_port import AdminApp
from inference_store.platform.backoff import Stopped, pause
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings

from .failures import DeadLetterLimit
from .pipeline import Pipeline
from .reports import OUTCOMES, Reports

_PARTITIONS_SECONDS = 20.0
_LIVE_SECONDS = 120.0
_EVERY_SECONDS = 5.0
# The api shows what was stored last, and when.
_STORE_SECONDS = 15.0
# The sequences of many producers take long to add up.
_PRODUCERS_SECONDS = 60.0
# By then another ingester has the partitions, and waits for the locks of the frozen one.
STALLED_SECONDS = 60.0
FETCH_THREADS = 16
_log = structlog.get_logger()


async def run(
    settings: IngesterSettings,
    stop: asyncio.Event | None = None,
    *,
    live_seconds: float = _LIVE_SECONDS,
) -> None:
    """Ingest until SIGTERM, SIGINT or `stop`; not live if a loop is stuck for `live_seconds`."""
    stop = stop or asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    engine = create_engine(
        settings,
        application="inference-store-ingester",
        idle_transaction_seconds=STALLED_SECONDS,
    )
    refuse_another_database(engine)
    blobs = Blobs(settings, threads=FETCH_THREADS)
    try:
        heartbeat = Heartbeat(limit_seconds=live_seconds)
        await _Ingester(settings, engine, blobs, heartbeat, stop).run()
    finally:
        blobs.close()
        await engine.dispose()


class _Ingester:
    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        heartbeat: Heartbeat,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._blobs = blobs
        self._stop = stop
        self._heartbeat = heartbeat
        self._backoff = make_backoff(stop, heartbeat=self._heartbeat)
        # Its own backoff: a retry that waits must not hide that the pipeline runs.
        self._retry_backoff = make_backoff(stop)
        self._limit = DeadLetterLimit(settings)
        self._consumer = KafkaConsumer(settings, engine)
        self._ledger_watch = LedgerWatch(Ledger(engine, blobs, prefix=settings.ledger_prefix))
        self._joined = False
        self._admin = AdminApp(
            "ingester",
            {
                "kafka": self._kafka,
                "postgres": lambda: self._away("postgres"),
                "object store": lambda: self._away("object store"),
                "ledger": self._ledger_watch.reason,
                "dead letter limit": self._within_limit,
            },
            self._heartbeat,
        )

    async def run(self) -> None:
        settings = self._settings
        metrics.from_zero(metrics.DEAD_LETTERS, DEAD_LETTER_REASONS)
        metrics.from_zero(metrics.TROUBLE, SERVERS)
        metrics.from_zero(metrics.REPORTS, OUTCOMES)
        await self._admin.start(settings.admin_host, settings.ingester_admin_port, settings)
        try:
            while not await self._work_until_replaced():
                await self._consumer.stop()
                await self._engine.dispose()
        except Stopped:
            pass
        finally:
            await self._consumer.stop()
            await self._admin.stop()
            _log.info("ingester stopped", action="stopped")

    async def _work_until_replaced(self) -> bool:
        """Return True when stopped; False if the database is another one, of which nothing that we
        remember holds."""
        try:
            await self._backoff.retry(self._reach)
            self._joined = True
            await self._work()
        except Exception as error:
            if not is_replaced(error) or (lacks_table(error) and await self._has_schema()):
                raise
            _log.warning("the database was recreated: begin again", action="database_replaced")
            return False
        return True

    async def _has_schema(self) -> bool:
        """Check whether all migrations are there, so that no wait brings a table that is not."""
        try:
            async with self._engine.connect() as connection:
                await require_schema(connection)
        except Exception:
            return False
        return True

    async def _reach(self) -> None:
        async with self._engine.connect() as connection:
            try:
                await require_schema(connection)
            except SchemaBehind as behind:
                if not self._joined:
                    raise
                # it had its tables: somebody recreates it
                raise PostgresUnavailable(str(behind)) from behind
        await asyncio.to_thread(self._blobs.check)
        await self._ledger_watch.compare()
        await self._consumer.start()

    async def _work(self) -> None:
        settings = self._settings
        for backoff in (self._backoff, self._retry_backoff):
            backoff.set_precondition(self._ledger_watch.require)
        reader = Reader(settings, self._engine, self._blobs)
        writer = self._writer(lambda: self._heartbeat.beat("write"))
        # The retries have caches of their own: both may resolve names at the same time. They have
        # no heartbeat, which would hide a stuck pipeline.
        retry_writer = self._writer(lambda: None)
        pipeline = Pipeline(
            settings,
            self._consumer,
            reader,
            writer,
            limit=self._limit,
            backoff=self._backoff,
            heartbeat=self._heartbeat,
            stop=self._stop,
        )
        retries = Retries(
            settings,
            self._engine,
            reader,
            retry_writer,
            backoff=self._retry_backoff,
            stop=self._stop,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pipeline.run())
            tasks.create_task(retries.run())
            tasks.create_task(Reports(settings, self._engine, self._stop).run())
            tasks.create_task(self._ledger_watch.run(self._stop))
            tasks.create_task(self._keep_partitions())
            tasks.create_task(Watch(self._consumer, self._engine, self._stop).run())

    async def _keep_partitions(self) -> None:
        """Create the next span before it is needed, and statistics long before autovacuum does."""
        ahead = partial(partitions.make_ahead, self._engine)
        while not await pause(self._stop, _PARTITIONS_SECONDS):
            try:
                await self._retry_backoff.retry(ahead)
                await self._retry_backoff.retry(partial(partitions.analyse, self._engine))
            except Stopped:
                return

    async def _away(self, server: str) -> str | None:
        of_line = await self._backoff.find_reason(server)
        return of_line or await self._retry_backoff.find_reason(server)

    def _writer(self, beat: Callable[[], None]) -> Writer:
        dictionary = Dictionary(self._engine, most_keys=self._settings.max_keys_per_model)
        return Writer(self._engine, dictionary, self._blobs, beat=beat)

    async def _kafka(self) -> str | None:
        away = await self._backoff.find_reason("kafka")
        return away or (None if self._joined else "not connected yet")

    async def _within_limit(self) -> str | None:
        return self._limit.reason


class Watch:
    """Sets the gauges that must change even if no events arrive, every five seconds, until stopped.

    Lag is measured on a clock, not when a batch is written: it must rise while the pipeline is
    stuck. It also stores the lag for the api, and ends sessions in which a frozen ingester holds
    locks.
    """

    def __init__(self, consumer: KafkaConsumer, engine: AsyncEngine, stop: asyncio.Event) -> None:
        self._consumer = consumer
        self._engine = engine
        self._stop = stop
        self._ends: dict[AssignedPartition, int] = {}
        self._are_ends_new = False
        self._stored_at = self._producers_at = float("-inf")
        self._parked: datetime | None = None
        self._shown: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Run until stopped. The pipeline reports unavailable servers: here values only age."""
        while not self._stop.is_set():
            # One by one: Kafka's figures must change while Postgres hangs, and the reverse.
            await self._try(self._read_kafka)
            await self._try(self._read_postgres)
            await self._try(self._read_producers)
            await self._try(self._end_stalled)
            await self._try(self._store_ends)
            self._show_lag()
            await pause(self._stop, _EVERY_SECONDS)

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_EVERY_SECONDS):
                await work()
        except (
            *(TimeoutError, PoolTimeout, DBAPIError, OSError),
            *(KafkaError, IllegalStateError),
        ) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)

    async def _read_kafka(self) -> None:
        self._ends = await self._consumer.find_ends()
        self._are_ends_new = True

    async def _read_postgres(self) -> None:
        async with self._engine.connect() as connection:
            totals = await figures.read_accounting(connection)
            partitions, ahead_seconds = await figures.read_partitions(connection)
        self._parked = totals.parked_record_time
        for outcome, count in totals.counts.items():
            metrics.BOOKS.labels(outcome.value).set(count)
        metrics.BOOKS_OPEN.set(totals.open_partitions)
        metrics.DEAD_OPEN.set(totals.dead_letters_open)
        metrics.PARKED.set(totals.parked)
        metrics.PARKED_OLDEST.set(totals.parked_oldest_seconds)
        metrics.PARTITIONS.set(partitions)
        metrics.PARTITIONS_AHEAD.set(ahead_seconds)

    async def _read_producers(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._producers_at + _PRODUCERS_SECONDS:
            return
        async with self._engine.connect() as connection:
            states = await accounting.count_producer_states(connection)
            metrics.PRODUCERS_OPEN.set(await figures.count_open_producers(connection))
        for state, count in states.items():
            metrics.PRODUCERS.labels(state).set(count)
        self._producers_at = now

    async def _end_stalled(self) -> None:
        async with self._engine.connect() as connection:
            ended = await end_stalled_sessions(connection, seconds=STALLED_SECONDS)
        if ended:
            metrics.STALLED.inc(ended)
            _log.warning("sessions of a frozen ingester ended", action="stalled", sessions=ended)

    async def _store_ends(self) -> None:
        """Store the ends of the logs for the api, if they were measured since the last time."""
        now = asyncio.get_running_loop().time()
        if not self._are_ends_new or now < self._stored_at + _STORE_SECONDS:
            return
        self._are_ends_new = False
        ends: dict[PartitionId, LogEnd] = {}
        for consumed in self._consumer.assigned:
            if consumed.partition_id is not None and consumed in self._ends:
                events, oldest = _measure_lag(consumed, self._ends)
                ends[consumed.partition_id] = LogEnd(consumed.written + events, oldest)
        async with self._engine.begin() as connection:
            await store_ends(connection, ends)
        self._stored_at = now

    def _show_lag(self) -> None:
        lags = {
            (consumed.tp.topic, str(consumed.tp.partition)): _measure_lag(consumed, self._ends)
            for consumed in self._consumer.assigned
        }
        ages = {partition: compute_age(at) for partition, (_, at) in lags.items()}
        for partition, (events, _) in lags.items():
            metrics.LAG.labels(*partition).set(events)
            metrics.LAG_SECONDS.labels(*partition).set(ages[partition])
        for partition in self._shown - lags.keys():  # another ingester has it now
            metrics.LAG.remove(*partition)
            metrics.LAG_SECONDS.remove(*partition)
        self._shown = set(lags)
        metrics.OLDEST.set(max([*ages.values(), compute_age(self._parked)]))


def _measure_lag(
    assigned: AssignedPartition, ends: Mapping[AssignedPartition, int]
) -> tuple[int, datetime | None]:
    """Return the number of offsets that are not written, and the time of the oldest of them.

    If the oldest has not been read, it is the time of the last one written: it is no older.
    """
    end = ends.get(assigned, assigned.next)
    events = max(0, max(end, assigned.next) - assigned.written)
    if not events:
        return 0, None
    return events, assigned.in_flight[0][1] if assigned.in_flight else assigned.written_at
