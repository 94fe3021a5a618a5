"""Build the retention service from its settings, and run it until it is asked to stop."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

import structlog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.housekeeping import RECORD_KINDS
from inference_store.erasure.ledger import Ledger, LedgerWatch
from inference_store.erasure.locks import RECONCILING, LeaderElection, open_election
from inference_store.erasure.progress import Erasure, list_uncertified, list_unfinished
from inference_store.erasure.runs import count_failure
from inference_store.export import jobs
from inference_store.export.part_writing import delete_forgotten, delete_unnamed
from inference_store.index import accounting, key_registry, registrations, web_sessions
from inference_store.index.database import create_engine, is_transient
from inference_store.index.schema import require_schema
from inference_store.inference.errors import ObjectStoreUnavailable, StoreError, Unavailable
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.operations import figures
from inference_store.operations.reconcile import stored_reports
from inference_store.platform import metrics, traces
from inference_store.platform.admin_port import AdminApp
from inference_store.platform.backoff import Backoff, Stopped, pause
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RUN_INTERVAL, UNCERTIFIED, from_zero
from inference_store.platform.serving import Heartbeat, in_background
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.query import counting
from inference_store.retention import eraser, housekeeping, segment_copier
from inference_store.retention.certifier import UNCERTIFIED_REASONS, end_erasure
from inference_store.retention.exporter import write_exports
from inference_store.retention.housekeeping import Overdue, link
from inference_store.retention.leader import Leader, LeadershipCheck
from inference_store.retention.orphan_eraser import erase_orphans
from inference_store.retention.residual import (
    remove_emptied_names,
    remove_recorded,
    remove_unused_names,
)
from inference_store.retention.run_executor import RunExecutor
from inference_store.retention.watched_views import OF_VIEWS, watch_views
from inference_store.truth.awaiting import expire, join_next

_log = structlog.get_logger()

# What the jobs of a turn do. Each raises Stopped, ObjectStoreUnavailable and the errors of the
# database; the next turn goes on.

# Of one erasure, and of all of them in a turn.
_SHARE_SECONDS: Final = 10.0
_ERASURES_SECONDS: Final = 60.0
_COUNTS_SECONDS: Final = 10.0
_JOINING_SECONDS: Final = 3.0
_RECONCILING_SECONDS: Final = 5.0
# Longer than a request to S3 takes with its repetitions.
_TAKEOVER_SECONDS: Final = 120.0


async def resume_erasures(leader: Leader) -> None:
    """Work on requested and unfinished erasures; on failed ones when the schedule is due.

    Each gets a share of the time, over and over, so that none waits for the longest of them. The
    rest of a turn does not wait long either.
    """
    until = time.monotonic() + _ERASURES_SECONDS
    if await leader.repeat(
        partial(resume_released, limit=leader.settings.retention_batch_inferences)
    ):
        # also quarantined events may be erased now
        leader.searched.clear()
        # they may lie before the position at which an erasure continues
        leader.positions.clear()
    begun = await _list_unfinished(leader, failed=leader.is_scheduled)
    while begun and time.monotonic() < until:
        begun = [erasure for erasure in begun if not await _work_on(leader, erasure)]
        requested = await _list_unfinished(leader, failed=False)
        ids = {erasure.id for erasure in begun}
        begun += [erasure for erasure in requested if erasure.id not in ids]


async def _list_unfinished(leader: Leader, *, failed: bool) -> list[Erasure]:
    async with leader.engine.connect() as connection:
        return await list_unfinished(connection, failed=failed)


async def _work_on(leader: Leader, erasure: Erasure) -> bool:
    if erasure.cause == "orphans":
        return await erase_orphans(leader, erasure, seconds=_SHARE_SECONDS)
    marked = await eraser.mark(leader, erasure, seconds=_SHARE_SECONDS)
    if marked == "all":
        return await eraser.finish(leader, erasure, seconds=_SHARE_SECONDS) is not None
    return marked == "over"


async def join_truth(leader: Leader) -> None:
    """Join ground truth that came before its inference, for a few seconds; delete what waited for
    too long. If the object store is unavailable, the next turn tries again."""
    await leader.repeat(expire)
    until = time.monotonic() + _JOINING_SECONDS
    try:
        while time.monotonic() < until:
            await leader.check.confirm_step()
            leader.joined = await join_next(leader.truth, leader.joined)
            if leader.joined is None:
                break
    except ObjectStoreUnavailable as error:
        count_failure("object_store")
        _log.warning("away", action="ground_truth_waits", error=str(error)[:500])


async def sign_waiting(leader: Leader) -> None:
    """Sign certificates that had to wait for a partition to be dropped, or for the right key."""
    async with leader.engine.connect() as connection:
        waiting = await list_uncertified(connection)
    for erasure in waiting:
        await leader.check.confirm_step()
        await end_erasure(leader.engine, leader.certifier, erasure, erasure.state)


async def write_head(leader: Leader) -> None:
    """Write the newest certificate to the head, once a minute."""
    if leader.certifier is not None:
        await leader.certifier.write_head()


async def request_scheduled(leader: Leader) -> None:
    """Request the run of the schedule, unless one is requested already."""
    async with leader.engine.begin() as connection:
        if not await runs.is_scheduled(connection):
            await runs.request_run(connection, cause="schedule")


async def carry_out_pending(leader: Leader) -> None:
    """Carry out all pending runs."""
    async with leader.engine.connect() as connection:
        pending = await runs.list_pending(connection)
    for run in pending:
        failpoint("retention.run_start.before")
        async with leader.engine.begin() as connection:
            await runs.start_run(connection, run.id)
        failpoint("retention.run_start.after")
        began = time.monotonic()
        attributes = {"inference_store.retention.cause": run.cause}
        with traces.ended(traces.begin("retention run", attributes=attributes)) as span:
            error = await RunExecutor(leader, run, now=datetime.now(UTC)).carry_out()
            if error is not None:
                traces.failed(span, "ErasureFailure")
        metrics.RUN_SECONDS.observe(time.monotonic() - began)
        failpoint("retention.run_finish.before")
        async with leader.engine.begin() as connection:
            await runs.finish_run(connection, run.id, error=error)
        failpoint("retention.run_finish.after")
        metrics.RETENTION_RUNS.labels("failed" if error else "done").inc()
        if error is None:
            LAST_RUN.set_to_current_time()
        _log.info("retention run", action="retention_run", id=str(run.id), error=error)


async def count_partitions(leader: Leader) -> None:
    """Count partitions that are no longer written, for a few seconds.

    It begins after each schedule, and goes on in every turn until all are counted. Erasures do not
    wait for it.
    """
    schedule, step = leader.completed, leader.check.confirm_step
    is_complete = counting.count_ended(leader.engine, seconds=_COUNTS_SECONDS, step=step)
    if await leader.check.unless_stopped(is_complete):
        leader.counted = schedule


async def reconcile(leader: Leader) -> None:
    """Carry out requested reconciliations for a few seconds, and one a day if that is set, unless a
    command does the work.

    If the object store is unavailable, or listing is forbidden, deletion goes on, and the next turn
    tries again.
    """
    is_daily = leader.settings.reconcile_schedule == "daily"
    reconciliation = await leader.reconciler.find_due(scheduled=is_daily)
    if reconciliation is None:
        return
    async with open_election(leader.engine, RECONCILING) as lock:
        if not await lock.take():
            return
        until = time.monotonic() + _RECONCILING_SECONDS
        try:
            while reconciliation.state not in stored_reports.FINAL and time.monotonic() < until:
                await leader.check.confirm_step()
                step = leader.reconciler.step(reconciliation)
                reconciliation = await leader.check.unless_stopped(step)
        except ObjectStoreUnavailable as error:
            count_failure("object_store")
            _log.warning("away", action="reconcile_waits", error=str(error)[:500])
        if reconciliation.state in stored_reports.FINAL:
            metrics.RECONCILIATIONS.labels(reconciliation.state).inc()


async def remember_parts(leader: Leader) -> None:
    """Remember the parts that were being written when this service began to lead, before it writes
    or erases anything.

    The earlier leader deletes its part itself if it can. Parts of earlier takeovers are deleted by
    `delete_forgotten`, each time a service begins to lead.
    """
    async with leader.engine.connect() as connection:
        leader.taken_over = await jobs.list_writing(connection)
    leader.taken_over_until = time.monotonic() + _TAKEOVER_SECONDS


def has_taken_over(leader: Leader) -> bool:
    """Check whether something was being written: each turn at first, then each schedule."""
    is_new = time.monotonic() < leader.taken_over_until
    return bool(leader.taken_over) and (is_new or leader.is_scheduled)


async def delete_taken_over(leader: Leader) -> None:
    """Delete of these parts the objects that none names any more; an erasure finds those that one
    names. Raises ObjectStoreUnavailable."""
    keys = [parse_stored(key) for key in leader.taken_over]
    await delete_unnamed(leader.engine, leader.blobs, keys)


# The table of jobs, which is walked turn by turn while this service leads.


def _every_turn(_: Leader) -> bool:
    return True


def _scheduled(leader: Leader) -> bool:
    return leader.is_scheduled


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a turn. `is_due` is called when the jobs before it are done."""

    name: str
    is_due: Callable[[Leader], bool]
    run: Callable[[Leader], Awaitable[object]]


async def _complete_schedule(leader: Leader) -> None:
    leader.due.clear()
    leader.completed += 1


JOBS: Final = (
    Job("parts of the leader before", has_taken_over, delete_taken_over),
    Job("other copies of segments", _every_turn, segment_copier.delete_other_copies),
    Job("erasures", _every_turn, resume_erasures),
    Job("truth that waits", _every_turn, join_truth),
    Job("certificates", _every_turn, sign_waiting),
    Job("values in holds", _every_turn, remove_recorded),
    Job("scheduled run", _scheduled, request_scheduled),
    Job("runs", _every_turn, carry_out_pending),
    Job("idle records", _scheduled, housekeeping.delete_idle_records),
    Job("sessions", _scheduled, lambda leader: leader.repeat(web_sessions.delete_ended)),
    Job("tombstones", _scheduled, housekeeping.delete_tombstones),
    Job("key registry", _scheduled, lambda leader: leader.repeat(key_registry.fold)),
    Job("emptied keys", _scheduled, remove_emptied_names),
    Job("producers", _scheduled, lambda leader: leader.repeat(accounting.fold_producers)),
    Job("old records", _scheduled, housekeeping.delete_records),
    Job("old exports", _scheduled, housekeeping.delete_old_exports),
    Job("ledger values", _scheduled, housekeeping.redact_ledger),
    Job("sparse segments", _scheduled, segment_copier.copy_sparse),
    Job("partitions", _scheduled, housekeeping.maintain_partitions),
    # only now: a job that failed before this is due again
    Job("end of schedule", _scheduled, _complete_schedule),
    Job("chain head", _every_turn, write_head),
    Job(
        "counts of partitions",
        lambda leader: leader.counted < leader.completed,
        count_partitions,
    ),
    Job("reconciliations", _every_turn, reconcile),
    Job("exports", _every_turn, write_exports),
)
"""Unfinished work, runs of policies, housekeeping, the rest: in this order."""


async def begin(leader: Leader) -> None:
    """Restart the runs of a process that died, remove the unused names that it left, and delete
    the exports that only the bucket has."""
    await remember_parts(leader)
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
_GAUGES: Final = {
    "marked": metrics.MARKED,
    "oldest_seconds": metrics.OLDEST_ERASURE,
    "holds": metrics.HOLDS,
    "held": metrics.HELD,
    "exports": metrics.EXPORTS_UNFINISHED,
    "exports_waiting": metrics.EXPORTS_WAITING,
    "audit_unlinked_seconds": metrics.AUDIT_UNLINKED,
}
"""By the name of a figure of deletion."""
_FOUND = ("missing", "orphans", "orphan_bytes", "young", "awaited", "unjudged")


@asynccontextmanager
async def set_gauges(engine: AsyncEngine, settings: RetentionSettings) -> AsyncIterator[None]:
    """Set the gauges every five seconds, and those of watched views when they are due; afterwards
    another service leads, and sets them."""
    keep = {kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS}
    metrics.LEADING.set(1)
    async with in_background(_set_repeatedly(engine, keep), watch_views(engine)):
        try:
            yield
        finally:
            for gauge in (metrics.LEADING, metrics.OVERDUE, *_GAUGES.values()):
                gauge.set(0)
            for gauge in (metrics.ERASURES, metrics.RECONCILED, *OF_VIEWS):
                gauge.clear()


async def _set_repeatedly(engine: AsyncEngine, keep: Mapping[str, float]) -> None:
    look, overdue = 0, Overdue(keep)
    while True:
        try:
            async with engine.connect() as connection:
                await _set_gauges(connection)
                if look % _OVERDUE_EVERY == 0:
                    metrics.OVERDUE.set(await overdue.measure_seconds(connection))
                look += 1
        except (DBAPIError, PoolTimeout, OSError, StoreError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)
        await asyncio.sleep(_EVERY_SECONDS)


async def _set_gauges(connection: AsyncConnection) -> None:
    deletion = await figures.read_retention(connection)
    for name, gauge in _GAUGES.items():
        gauge.set(getattr(deletion, name))
    for state, count in deletion.erasures.items():
        metrics.ERASURES.labels(state).set(count)
    if deletion.last_run is not None:
        metrics.LAST_RUN.set(deletion.last_run.timestamp())
    reconciled = await stored_reports.find_newest(connection)
    if reconciled is not None and reconciled.finished_at is not None:
        metrics.LAST_RECONCILIATION.set(reconciled.finished_at.timestamp())
        metrics.RECONCILED.labels("difference").set((reconciled.books or {}).get("difference", 0))
        for name in _FOUND:
            metrics.RECONCILED.labels(name).set(reconciled.count(name))


# How often requested runs and erasures are looked for.
_POLL_SECONDS = 0.5
_LIVE_SECONDS = 300.0


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
    engine = create_engine(
        settings,
        application="inference-store-retention",
        # one each for leadership, health, gauges, watched views, the audit's chain and the ledger's
        # outbox, three for the work
        pool_size=max(settings.postgres_pool_size, 9),
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
        self._backoff = Backoff(
            _find_server,
            lambda server: count_failure(server.replace(" ", "_")),
            stop=stop,
            heartbeat=heartbeat,
        )
        self._ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
        self._watch = LedgerWatch(self._ledger)
        self._due = asyncio.Event()
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
                await self._backoff.retry(self._lead_in_turn)
        except Stopped:
            pass
        finally:
            await self._admin.stop()
            _log.info("retention stopped", action="stopped")

    async def _lead_in_turn(self) -> None:
        async with self._engine.connect() as connection:
            await require_schema(connection)
        await self._watch.compare()
        async with open_election(self._engine) as election:
            while not await election.take():
                # the failure is another replica's now, if there still is any
                self._backoff.clear()
                self._heartbeat.beat()
                await self._sleep()
            await self._lead(election)

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
                    self._backoff.clear()
                    await self._sleep()
            except Stopped:
                if leader.certifier is not None:
                    await leader.certifier.write_head(at_once=True)
                raise

    async def _sleep(self) -> None:
        if await pause(self._stop, _POLL_SECONDS):
            raise Stopped

    async def _check_postgres(self) -> str | None:
        if (why := await self._backoff.find_reason("postgres")) is not None:
            return why
        try:
            async with self._engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        except (DBAPIError, PoolTimeout, OSError, TimeoutError) as exc:
            return f"Postgres is unavailable: {exc}"[:500]
        return None

    async def _check_object_store(self) -> str | None:
        # it may still answer a mere health check
        if (why := await self._backoff.find_reason("object store")) is not None:
            return why
        try:
            await asyncio.to_thread(self._blobs.check)
        except ObjectStoreUnavailable as exc:
            return str(exc)[:500]
        return None


def _find_server(error: BaseException) -> str | None:
    if isinstance(error, Unavailable):  # ledger divergence, or others were always faster to write
        return "ledger"
    if isinstance(error, ObjectStoreUnavailable):
        return "object store"
    return "postgres" if is_transient(error) else None


async def _set_due(due: asyncio.Event, every_seconds: float) -> None:
    """Set `due` now and at every interval; missed runs become one."""
    while True:
        due.set()
        await asyncio.sleep(every_seconds)
