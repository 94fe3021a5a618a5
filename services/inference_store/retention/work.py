"""What the jobs of a turn do: erasures, certificates, runs, counts, reconciliations.

Each raises Stopped, ObjectStoreUnavailable and the errors of the database; the next turn goes on.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import runs
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.locks import RECONCILING, open_election
from inference_store.erasure.log import ChainHead, signing_keys
from inference_store.erasure.progress import Erasure, list_uncertified, list_unfinished
from inference_store.erasure.runs import RetentionRun, count_failure
from inference_store.export import jobs
from inference_store.export.part_formats import CopyLimits
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.stored_reports import FINAL, Reconciliation
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RECONCILIATIONS, RETENTION_RUNS, RUN_SECONDS
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from inference_store.query import counting
from inference_store.retention.marker import ExportWorker
from inference_store.retention.orphan_eraser import QuarantineEraser

from .certifier import Certifier, end_erasure
from .eraser import Eraser
from .leadership_check import LeadershipCheck
from .marker import Marker
from .orphan_eraser import OrphanEraser
from .residual import ResidualInHolds
from .run_executor import RunExecutor

# Of one erasure, and of all of them in a turn.
_SHARE_SECONDS: Final = 10.0
_ERASURES_SECONDS: Final = 60.0
_COUNTS_SECONDS: Final = 10.0
_RECONCILING_SECONDS: Final = 5.0
# Longer than a request to S3 takes with its repetitions.
_TAKEOVER_SECONDS: Final = 120.0
_log = structlog.get_logger()


@dataclass(kw_only=True)
class Leader:
    """What the jobs of the service that leads share, and where they are."""

    settings: RetentionSettings
    engine: AsyncEngine
    blobs: Blobs
    check: LeadershipCheck
    due: asyncio.Event
    ledger: Ledger
    certifier: Certifier | None
    eraser: Eraser
    marker: Marker
    orphans: OrphanEraser
    in_holds: ResidualInHolds
    exports: ExportWorker
    reconciler: Reconciler
    taken_over: "TakenOverParts"
    # whether the schedule was due when the turn began: if it is set later, the next turn sees it
    is_scheduled: bool = False
    # completed schedules, and the last one after which all partitions were counted
    completed: int = 0
    counted: int = 0


def build_leader(  # noqa: PLR0917
    settings: RetentionSettings,
    engine: AsyncEngine,
    blobs: Blobs,
    check: LeadershipCheck,
    due: asyncio.Event,
    kafka: KafkaSettings | None,
) -> Leader:
    """Wire what the jobs share from the settings. `due`: set by the schedule."""
    batch = settings.retention_batch_inferences
    ledger = Ledger(engine, blobs, prefix=settings.ledger_prefix)
    certifier = _build_certifier(settings, engine, blobs)
    quarantine = QuarantineEraser(engine, blobs, ledger, check)
    copies = CopyLimits(settings.export_blob_bytes, settings.export_part_bytes)
    return Leader(
        settings=settings,
        engine=engine,
        blobs=blobs,
        check=check,
        due=due,
        ledger=ledger,
        certifier=certifier,
        eraser=Eraser(engine, blobs, ledger, check, batch=batch, certifier=certifier),
        marker=Marker(engine, ledger, quarantine, check),
        orphans=OrphanEraser(settings, engine, blobs, ledger, check, certifier),
        in_holds=ResidualInHolds(engine, check, certifier),
        exports=ExportWorker(
            engine, blobs, check, most=settings.export_part_inferences, copies=copies
        ),
        reconciler=Reconciler(settings, engine, blobs, kafka=kafka),
        taken_over=TakenOverParts(engine, blobs),
    )


def _build_certifier(
    settings: RetentionSettings, engine: AsyncEngine, blobs: Blobs
) -> Certifier | None:
    keys = signing_keys(settings)
    if not keys:
        return None
    return Certifier(
        engine,
        blobs,
        keys,
        events_seconds=settings.tombstone_seconds,
        ledger_seconds=settings.ledger_values_keep_seconds,
        audit_seconds=settings.audit_keep_seconds,
        head=ChainHead(settings, lock_days=settings.certificate_head_lock_days),
    )


async def resume_erasures(leader: Leader) -> None:
    """Work on requested and unfinished erasures; on failed ones when the schedule is due.

    Each gets a share of the time, over and over, so that none waits for the longest of them. The
    rest of a turn does not wait long either.
    """
    until = time.monotonic() + _ERASURES_SECONDS
    await _mark_released(leader)
    begun = await _list_unfinished(leader, failed=leader.is_scheduled)
    while begun and time.monotonic() < until:
        begun = [erasure for erasure in begun if not await _work_on(leader, erasure)]
        requested = await _list_unfinished(leader, failed=False)
        ids = {erasure.id for erasure in begun}
        begun += [erasure for erasure in requested if erasure.id not in ids]


async def _list_unfinished(leader: Leader, *, failed: bool) -> list[Erasure]:
    async with leader.engine.connect() as connection:
        return await list_unfinished(connection, failed=failed)


async def _mark_released(leader: Leader) -> None:
    marked, limit = 1, leader.settings.retention_batch_inferences
    while marked:
        await leader.check.confirm_step()
        async with leader.engine.begin() as connection:
            marked = await resume_released(connection, limit=limit)
        if marked:
            leader.marker.search_again()
            # they may lie before the position at which an erasure continues
            leader.eraser.positions.clear()


async def _work_on(leader: Leader, erasure: Erasure) -> bool:
    if erasure.cause == "orphans":
        return await leader.orphans.work(erasure, seconds=_SHARE_SECONDS)
    marked = await leader.marker.mark(erasure, seconds=_SHARE_SECONDS)
    if marked == "all":
        return await leader.eraser.finish(erasure, seconds=_SHARE_SECONDS) is not None
    return marked == "over"


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
        error = await _execute(leader, run)
        RUN_SECONDS.observe(time.monotonic() - began)
        failpoint("retention.run_finish.before")
        async with leader.engine.begin() as connection:
            await runs.finish_run(connection, run.id, error=error)
        failpoint("retention.run_finish.after")
        RETENTION_RUNS.labels("failed" if error else "done").inc()
        if error is None:
            LAST_RUN.set_to_current_time()
        _log.info("retention run", action="retention_run", id=str(run.id), error=error)


async def _execute(leader: Leader, run: RetentionRun) -> str | None:
    batch, about = leader.settings.retention_batch_inferences, (leader.ledger, leader.eraser, run)
    executor = RunExecutor(leader.engine, *about, batch=batch, now=datetime.now(UTC))
    attributes = {"inference_store.retention.cause": run.cause}
    with traces.ended(traces.begin("retention run", attributes=attributes)) as span:
        error = await executor.carry_out()
        if error is not None:
            traces.failed(span, "ErasureFailure")
    return error


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
        try:
            await _reconcile(leader, reconciliation)
        except ObjectStoreUnavailable as error:
            count_failure("object_store")
            _log.warning("away", action="reconcile_waits", error=str(error)[:500])


async def _reconcile(leader: Leader, reconciliation: Reconciliation) -> None:
    until = time.monotonic() + _RECONCILING_SECONDS
    while reconciliation.state not in FINAL and time.monotonic() < until:
        await leader.check.confirm_step()
        step = leader.reconciler.step(reconciliation)
        reconciliation = await leader.check.unless_stopped(step)
    if reconciliation.state in FINAL:
        RECONCILIATIONS.labels(reconciliation.state).inc()


class TakenOverParts:
    """Remembers the keys that were being written when this service began to lead.

    The earlier leader deletes its part itself if it can. Parts of earlier takeovers are deleted by
    `restore_exports`, each time a service begins to lead.
    """

    def __init__(self, engine: AsyncEngine, blobs: Blobs) -> None:
        self._engine = engine
        self._blobs = blobs
        self._keys: Sequence[str] = ()
        self._until = 0.0

    async def remember(self) -> None:
        """Read the keys, before this service writes or erases anything."""
        async with self._engine.connect() as connection:
            self._keys = await jobs.list_writing(connection)
        self._until = time.monotonic() + _TAKEOVER_SECONDS

    def is_due(self, *, is_scheduled: bool = False) -> bool:
        """Check whether something was being written: each turn at first, then each schedule."""
        return bool(self._keys) and (time.monotonic() < self._until or is_scheduled)

    async def delete(self) -> None:
        """Delete the objects that no part names any more, in every version; an erasure finds those
        that a part names. Raises ObjectStoreUnavailable."""
        async with self._engine.connect() as connection:
            named = await jobs.find_named(connection, self._keys)
        keys = [parse_stored(key) for key in self._keys if key not in named]
        present = await asyncio.to_thread(self._blobs.still_there, keys) if keys else []
        if present:
            faults = await asyncio.to_thread(self._blobs.delete_objects, present)
            about = {"keys": [str(key) for key in present], "faults": [f.message for f in faults]}
            _log.warning("deleted what no part names", action="export_objects_deleted", **about)
