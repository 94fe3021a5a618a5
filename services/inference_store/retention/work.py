"""What the jobs of a turn do: erasures, certificates, runs, counts, reconciliations.

Each raises Stopped, ObjectStoreUnavailable and the errors of the database; the next turn goes on.
"""

import time
from datetime import UTC, datetime
from typing import Final

import structlog

from inference_store.erasure import runs
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.locks import RECONCILING, open_election
from inference_store.erasure.progress import Erasure, list_uncertified, list_unfinished
from inference_store.erasure.runs import RetentionRun, count_failure
from inference_store.export import jobs
from inference_store.export.part_writing import delete_unnamed
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import parse_stored
from inference_store.operations.reconcile.stored_reports import FINAL, Reconciliation
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LAST_RUN, RECONCILIATIONS, RETENTION_RUNS, RUN_SECONDS
from inference_store.query import counting

from . import eraser
from .certifier import end_erasure
from .leader import Leader
from .orphan_eraser import erase_orphans
from .run_executor import RunExecutor

# Of one erasure, and of all of them in a turn.
_SHARE_SECONDS: Final = 10.0
_ERASURES_SECONDS: Final = 60.0
_COUNTS_SECONDS: Final = 10.0
_RECONCILING_SECONDS: Final = 5.0
# Longer than a request to S3 takes with its repetitions.
_TAKEOVER_SECONDS: Final = 120.0
_log = structlog.get_logger()


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
            # also quarantined events may be erased now
            leader.searched.clear()
            # they may lie before the position at which an erasure continues
            leader.positions.clear()


async def _work_on(leader: Leader, erasure: Erasure) -> bool:
    if erasure.cause == "orphans":
        return await erase_orphans(leader, erasure, seconds=_SHARE_SECONDS)
    marked = await eraser.mark(leader, erasure, seconds=_SHARE_SECONDS)
    if marked == "all":
        return await eraser.finish(leader, erasure, seconds=_SHARE_SECONDS) is not None
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
    executor = RunExecutor(leader, run, now=datetime.now(UTC))
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
