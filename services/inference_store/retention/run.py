"""Build the retention service from its settings, and run it until it is asked to stop."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.housekeeping import RECORD_KINDS
from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.erasure.locks import LeaderElection, open_election
from inference_store.erasure.runs import count_failure
from inference_store.export.part_writing import delete_forgotten
from inference_store.index import registrations
from inference_store.index.database import engine_of, is_transient
from inference_store.index.schema import require_schema
from inference_store.inference.errors import ObjectStoreUnavailable, StoreError, Unavailable
from inference_store.objects import Blobs
from inference_store.operations import figures
from inference_store.platform import metrics
from inference_store.platform.metrics import LAST_RUN, RUN_INTERVAL, UNCERTIFIED, from_zero
from inference_store.platform.serving import AdminApp, Heartbeat
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.retention import housekeeping, work
from inference_store.retention.certifier import UNCERTIFIED_REASONS
from inference_store.retention.exporter import write_exports
from inference_store.retention.housekeeping import Overdue, link
from inference_store.retention.leader import Leader, LeadershipCheck, Stopped, in_background
from inference_store.retention.residual import remove_recorded, remove_unused_names

# The table of jobs, which is walked turn by turn while this service leads.

_log = structlog.get_logger()


def _every_turn(_: Leader) -> bool:
    return True


def _scheduled(leader: Leader) -> bool:
    return leader.is_scheduled


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a turn. `is_due` is called when the jobs before it are done."""

    name: str
    is_due: Callable[[Leader], bool]
    run: Callable[[Leader], Awaitable[None]]


async def _complete_schedule(leader: Leader) -> None:
    leader.due.clear()
    leader.completed += 1


JOBS: Final = (
    Job("parts of the leader before", work.has_taken_over, work.delete_taken_over),
    Job("erasures", _every_turn, work.resume_erasures),
    Job("certificates", _every_turn, work.sign_waiting),
    Job("values in holds", _every_turn, remove_recorded),
    Job("scheduled run", _scheduled, work.request_scheduled),
    Job("runs", _every_turn, work.carry_out_pending),
    Job("idle records", _scheduled, housekeeping.delete_idle_records),
    Job("sessions", _scheduled, housekeeping.delete_ended_sessions),
    Job("tombstones", _scheduled, housekeeping.delete_tombstones),
    Job("key registry", _scheduled, housekeeping.fold_key_registry),
    Job("producers", _scheduled, housekeeping.fold_producers),
    Job("old records", _scheduled, housekeeping.delete_records),
    Job("old exports", _scheduled, housekeeping.delete_old_exports),
    Job("ledger values", _scheduled, housekeeping.redact_ledger),
    Job("partitions", _scheduled, housekeeping.maintain_partitions),
    # only now: a job that failed before this is due again
    Job("end of schedule", _scheduled, _complete_schedule),
    Job("chain head", _every_turn, work.write_head),
    Job(
        "counts of partitions",
        lambda leader: leader.counted < leader.completed,
        work.count_partitions,
    ),
    Job("reconciliations", _every_turn, work.reconcile),
    Job("exports", _every_turn, write_exports),
)
"""Unfinished work, runs of policies, housekeeping, the rest: in this order."""


async def begin(leader: Leader) -> None:
    """Restart the runs of a process that died, remove the unused names that it left, and delete
    the exports that only the bucket has."""
    await work.remember_parts(leader)
    async with leader.engine.begin() as connection:
        await runs.reset_interrupted(connection)
        models = await registrations.every_model(connection)
    await remove_unused_names(leader, models)
    # before anything is erased: an erasure finds only what Postgres names
    await delete_forgotten(leader.engine, leader.blobs, leader.check.confirm_step)


async def run_turn(leader: Leader) -> None:
    """Run every job that is due, in the order of the table. Raises Stopped, ObjectStoreUnavailable
    and the errors of the database."""
    await leader.check.confirm_step()
    leader.is_scheduled = leader.due.is_set()
    for job in JOBS:
        if job.is_due(leader):
            _log.debug("job", action="retention_job", job=job.name)
            await job.run(leader)


_EVERY_SECONDS = 5.0
# Every minute, because it searches for the oldest of everything.
_OVERDUE_EVERY = 12
_GAUGES = (
    *(metrics.LEADING, metrics.MARKED, metrics.OLDEST_ERASURE, metrics.OVERDUE, metrics.HOLDS),
    *(metrics.HELD, metrics.AUDIT_UNLINKED, metrics.EXPORTS_UNFINISHED, metrics.EXPORTS_WAITING),
)
_FOUND = ("missing", "orphans", "orphan_bytes", "young", "awaited", "unjudged")


@asynccontextmanager
async def set_gauges(engine: AsyncEngine, settings: RetentionSettings) -> AsyncIterator[None]:
    """Set the gauges every five seconds; afterwards another service leads, and sets them."""
    keep = {kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS}
    metrics.LEADING.set(1)
    async with in_background(_set_repeatedly(engine, keep)):
        try:
            yield
        finally:
            for gauge in _GAUGES:
                gauge.set(0)
            metrics.ERASURES.clear()
            metrics.RECONCILED.clear()


async def _set_repeatedly(engine: AsyncEngine, keep: Mapping[str, float]) -> None:
    look, overdue = 0, Overdue(keep)
    while True:
        try:
            async with engine.connect() as connection:
                _set_deletion_gauges(await figures.read_retention(connection))
                _set_reconciliation_gauges(await figures.read_reconciliation(connection))
                if look % _OVERDUE_EVERY == 0:
                    metrics.OVERDUE.set(await overdue.measure_seconds(connection))
                look += 1
        except (DBAPIError, PoolTimeout, OSError, StoreError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


def _set_deletion_gauges(figures_now: figures.RetentionFigures) -> None:
    metrics.MARKED.set(figures_now.marked)
    for state, count in figures_now.erasures.items():
        metrics.ERASURES.labels(state).set(count)
    metrics.OLDEST_ERASURE.set(figures_now.oldest_seconds)
    metrics.HOLDS.set(figures_now.holds)
    metrics.HELD.set(figures_now.held)
    metrics.EXPORTS_UNFINISHED.set(figures_now.exports)
    metrics.EXPORTS_WAITING.set(figures_now.exports_waiting)
    metrics.AUDIT_UNLINKED.set(figures_now.audit_unlinked_seconds)
    if figures_now.last_run is not None:
        metrics.LAST_RUN.set(figures_now.last_run.timestamp())


def _set_reconciliation_gauges(figures_now: figures.ReconciliationFigures | None) -> None:
    if figures_now is None:
        return
    metrics.LAST_RECONCILIATION.set(figures_now.ended.timestamp())
    metrics.RECONCILED.labels("difference").set(figures_now.difference)
    for name in _FOUND:
        metrics.RECONCILED.labels(name).set(figures_now.counts.get(name, 0))


# How often requested runs and erasures are looked for.
_POLL_SECONDS = 0.5
_LIVE_SECONDS = 300.0
_LONGEST_WAIT_SECONDS = 30.0


async def run(
    settings: RetentionSettings,
    stop: asyncio.Event | None = None,
    *,
    kafka: KafkaSettings | None = None,
    live_seconds: float = _LIVE_SECONDS,
) -> None:
    """Delete by policy until SIGTERM, SIGINT or `stop`; not live if stuck for `live_seconds`.

    `kafka`: the topic in which a reconciliation looks for unread events; without it no object is an
    orphan.
    """
    stop = stop or asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    engine = engine_of(
        settings,
        application="inference-store-retention",
        # one each for leadership, health, gauges, the audit's chain and the ledger's outbox, three
        # for the work
        pool_size=max(settings.postgres_pool_size, 8),
    )
    blobs = Blobs(settings)
    try:
        heartbeat = Heartbeat(limit_seconds=live_seconds)
        await _Retention(settings, engine, blobs, heartbeat, stop, kafka=kafka).run()
    finally:
        blobs.close()
        await engine.dispose()


class _Retention:
    def __init__(
        self,
        settings: RetentionSettings,
        engine: AsyncEngine,
        blobs: Blobs,
        heartbeat: Heartbeat,
        stop: asyncio.Event,
        *,
        kafka: KafkaSettings | None,
    ) -> None:
        self._settings = settings
        self._kafka_settings = kafka
        self._engine = engine
        self._blobs = blobs
        self._stop = stop
        self._heartbeat = heartbeat
        # by server, why the service waits; the server may still answer a mere health check
        self._unavailable: dict[str, str] = {}
        self._ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        self._watch = LedgerWatch(self._ledger)
        self._due = asyncio.Event()
        self._wait_seconds = _POLL_SECONDS
        self._admin = AdminApp(
            "retention",
            {
                "postgres": self._check_postgres,
                "object store": self._check_object_store,
                "ledger": self._watch.reason,
            },
            self._heartbeat,
        )

    async def run(self) -> None:
        settings = self._settings
        await self._admin.start(settings.admin_host, settings.retention_admin_port, settings)
        from_zero(UNCERTIFIED, UNCERTIFIED_REASONS)
        # If no run has ever succeeded, the delay counts from here.
        LAST_RUN.set_to_current_time()
        RUN_INTERVAL.set(settings.retention_interval_seconds)
        schedule = _set_due(self._due, settings.retention_interval_seconds)
        try:
            async with in_background(schedule):
                while not self._stop.is_set():
                    await self._work_until_error()
        except Stopped:
            pass
        finally:
            await self._admin.stop()
            _log.info("retention stopped", action="stopped")

    async def _work_until_error(self) -> None:
        try:
            async with self._engine.connect() as connection:
                await require_schema(connection)
            await self._watch.compare()
            async with open_election(self._engine) as election:
                while not await election.take():
                    # the failure is another replica's now, if there still is any
                    self._unavailable.clear()
                    self._heartbeat.beat()
                    await self._sleep(_POLL_SECONDS)
                await self._lead(election)
        except Unavailable as exc:  # ledger divergence, or others were always faster to write
            await self._wait_after_error("ledger", exc)
        except ObjectStoreUnavailable as exc:
            await self._wait_after_error("object store", exc)
        except (DBAPIError, PoolTimeout, OSError) as exc:
            if not is_transient(exc):
                raise
            await self._wait_after_error("postgres", exc)

    async def _lead(self, election: LeaderElection) -> None:
        check = LeadershipCheck(election, self._heartbeat, self._stop)
        about = (self._settings, self._engine, self._blobs)
        leader = Leader(*about, check, self._due, kafka=self._kafka_settings)
        _log.info("retention leads", action="leading")
        async with set_gauges(self._engine, self._settings), link(self._engine, self._ledger):
            await begin(leader)
            try:
                while True:
                    await self._watch.compare_if_due()
                    await run_turn(leader)
                    self._unavailable.clear()
                    self._wait_seconds = _POLL_SECONDS
                    await self._sleep(self._wait_seconds)
            except Stopped:
                if leader.certifier is not None:
                    await leader.certifier.write_head(at_once=True)
                raise

    async def _wait_after_error(self, server: str, error: Exception) -> None:
        count_failure(server.replace(" ", "_"))
        self._heartbeat.beat()
        # for this turn only: the other server may be available again
        self._unavailable = {server: (str(error) or type(error).__name__)[:500]}
        _log.warning("away", action="trouble", server=server, error=self._unavailable[server])
        self._wait_seconds = min(self._wait_seconds * 2, _LONGEST_WAIT_SECONDS)
        await self._sleep(self._wait_seconds)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
        raise Stopped

    async def _check_postgres(self) -> str | None:
        if "postgres" in self._unavailable:
            return self._unavailable["postgres"]
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except (DBAPIError, PoolTimeout, OSError, TimeoutError) as exc:
            return f"Postgres is unavailable: {exc}"[:500]
        return None

    async def _check_object_store(self) -> str | None:
        if "object store" in self._unavailable:
            return self._unavailable["object store"]
        try:
            await asyncio.to_thread(self._blobs.check)
        except ObjectStoreUnavailable as exc:
            return str(exc)[:500]
        return None


async def _set_due(due: asyncio.Event, every_seconds: float) -> None:
    """Set `due` now and at every interval; missed runs become one."""
    while True:
        due.set()
        await asyncio.sleep(every_seconds)
