"""Build the ingester from its settings, and run it until it is asked to stop."""

import asyncio
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.index import parked, partitions
from inference_store.index.database import (
    PostgresUnavailable,
    engine_of,
    is_replaced,
    lacks_table,
    refuse_another_database,
)
from inference_store.index.dictionary import Dictionary
from inference_store.index.schema import require_schema
from inference_store.inference.errors import SchemaBehind
from inference_store.inference.events import DEAD_LETTER_REASONS
from inference_store.objects import Blobs
from inference_store.platform import metrics
from inference_store.platform.admin import AdminApp, Heartbeat
from inference_store.platform.settings import IngesterSettings

from .backoff import SERVERS, Backoff, Stopped
from .consumer import Consumer
from .kafka_consumer import KafkaConsumer
from .limit import DeadLetterLimit
from .pipeline import Pipeline
from .reader import Reader
from .reports import OUTCOMES, Reports
from .retry import Retries
from .watch import STALLED_SECONDS, Watch
from .write import Writer

_PARTITIONS_SECONDS = 20.0
_LIVE_SECONDS = 120.0
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
    engine = engine_of(
        settings,
        application="inference-store-ingester",
        idle_transaction_seconds=STALLED_SECONDS,
    )
    refuse_another_database(engine)
    blobs = Blobs(settings, threads=settings.ingester_fetch_threads)
    try:
        heartbeat = Heartbeat(limit_seconds=live_seconds)
        await _Ingester(settings, engine, blobs, heartbeat, stop).run()
    finally:
        blobs.close()
        await engine.dispose()


def schedule_of(settings: IngesterSettings) -> parked.Schedule:
    """Return the schedule by which parked events are tried again."""
    return parked.Schedule(
        first=timedelta(seconds=settings.ingester_parked_first_seconds),
        longest=timedelta(seconds=settings.ingester_parked_longest_seconds),
        give_up=timedelta(seconds=settings.ingester_parked_give_up_seconds),
    )


class _Ingester:
    """The parts of one ingester, wired."""

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
        self._backoff = Backoff(
            stop, first_seconds=settings.ingester_retry_seconds, heartbeat=self._heartbeat
        )
        # Its own backoff: a retry that waits must not hide that the pipeline runs.
        self._retry_backoff = Backoff(stop, first_seconds=settings.ingester_retry_seconds)
        self._limit = DeadLetterLimit(settings)
        self._consumer: Consumer = KafkaConsumer(settings, engine)
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
        await self._admin.start(
            settings.ingester_admin_host, settings.ingester_admin_port, settings
        )
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
        """Check that every server answers, then join the group."""
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
        settings, schedule = self._settings, schedule_of(self._settings)
        for backoff in (self._backoff, self._retry_backoff):
            backoff.set_precondition(self._ledger_watch.require)
        reader = Reader(settings, self._engine, self._blobs)
        writer = self._writer(schedule, lambda: self._heartbeat.beat("write"))
        # The retries have caches of their own: both may resolve names at the same time. They have
        # no heartbeat, which would hide a stuck pipeline.
        retry_writer = self._writer(schedule, lambda: None)
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
            schedule=schedule,
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
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), _PARTITIONS_SECONDS)
            except TimeoutError:
                target = self._settings.partition_inferences
                ahead = partial(partitions.make_ahead, self._engine, target=target)
                try:
                    await self._retry_backoff.retry(ahead)
                    await self._retry_backoff.retry(partial(partitions.analyse, self._engine))
                except Stopped:
                    return

    async def _away(self, server: str) -> str | None:
        """Return why the pipeline or the retries wait for a server, or None."""
        of_line = await self._backoff.find_reason(server)
        return of_line or await self._retry_backoff.find_reason(server)

    def _writer(self, schedule: parked.Schedule, beat: Callable[[], None]) -> Writer:
        settings = self._settings
        dictionary = Dictionary(
            self._engine,
            most_keys=settings.max_keys_per_model,
            most_labels=settings.max_labels_per_model,
        )
        return Writer(
            self._engine,
            dictionary,
            schedule,
            self._blobs,
            partition_target=settings.partition_inferences,
            beat=beat,
        )

    async def _kafka(self) -> str | None:
        away = await self._backoff.find_reason("kafka")
        return away or (None if self._joined else "not connected yet")

    async def _within_limit(self) -> str | None:
        return self._limit.reason
