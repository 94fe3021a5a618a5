"""Marks the inferences of an erasure, batch by batch; removes the marks of a cancelled one, and
waives what holds protect. Below: exports are written between deletions.

A waiver works batch by batch. Each batch is in the ledger before it takes effect; then the
erasure needs only its certificate. After a crash in between, less is left to waive.
"""

import time
from math import inf
from typing import Final, Literal, TypeAlias
from uuid import UUID

import structlog

from inference_store.erasure import requests
from inference_store.erasure.batches import describe_batch
from inference_store.erasure.progress import (
    Erasure,
    advance_erasure,
    fail_erasure,
    find_state,
    finish_erasure,
)
from inference_store.erasure.requests import remove_pending_of
from inference_store.erasure.runs import count_failure
from inference_store.erasure.selection import find_requested, find_unmarked
from inference_store.export import jobs
from inference_store.export.jobs import ExportJob
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_formats import CopyLimits
from inference_store.export.part_writing import finish_export, remove_export, write_part
from inference_store.inference.errors import (
    HoldUnreadable,
    Invalid,
    ObjectStoreUnavailable,
    StoreError,
    Unavailable,
)
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import EXPORTED_BYTES, EXPORTS, STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.query.deadline import OutOfTime
from inference_store.retention.leadership_check import ACTOR, Leader
from inference_store.retention.orphan_eraser import remove_subject

MarkResult: TypeAlias = Literal["all", "not_yet", "over"]
_BATCH = 5_000
_log = structlog.get_logger()


async def mark(leader: Leader, erasure: Erasure, *, seconds: float = inf) -> MarkResult:
    """Mark the inferences of an erasure, for at most `seconds`.

    `all`: it may be erased; `not_yet`: call again; `over`: it was cancelled, its rest was
    waived, or its filter could not be evaluated, which is tried again like other failures.
    Raises the errors of the database, and Unavailable: try again later.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            unmarked = await find_unmarked(connection, erasure)
            state = await find_state(connection, erasure.id)
        if state in {"cancelling", "cancelled"}:
            await _unmark(leader, erasure)
            return "over"
        try:
            if state == "giving_up":
                await _waive_held(leader, erasure)
                return "over"
            if unmarked is None:
                # Search once in a process, and again after a hold is released: removed
                # events stay removed.
                if erasure.id not in leader.searched:
                    await remove_subject(leader, erasure)
                    leader.searched.add(erasure.id)
                return "all"
            await _mark_batch(leader, erasure, *unmarked)
        except Unavailable:
            raise  # the ledger is unavailable: the service waits, and the erasure with it
        except (OutOfTime, StoreError) as error:
            await _fail(leader, erasure, error)
            return "over"
    return "not_yet"


async def _mark_batch(leader: Leader, erasure: Erasure, model: int, after: UUID | None) -> None:
    failpoint("retention.mark.before")
    with stage(STEP_SECONDS, "mark"):
        async with leader.engine.begin() as connection:
            if not await advance_erasure(connection, erasure.id, "marking"):
                return
            uids, position = await find_requested(
                connection, erasure, model, after=after, limit=_BATCH
            )
            batch = await describe_batch(connection, erasure, model, uids, position=position)
        await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
    failpoint("retention.mark.after")


async def _unmark(leader: Leader, erasure: Erasure) -> None:
    removed = 1
    while removed:
        await leader.check.confirm_step()
        async with leader.engine.begin() as connection:
            removed = await remove_pending_of(connection, erasure.id, limit=_BATCH)
    await leader.ledger.write("erasure_cancelled", {"erasure": str(erasure.id)}, actor=ACTOR)
    _log.info("erasure", action="erasure", id=str(erasure.id), state="cancelled")


async def _waive_held(leader: Leader, erasure: Erasure) -> None:
    while True:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            body = await requests.find_held_rest(connection, erasure, limit=_BATCH)
        if body is None:
            break
        await leader.ledger.write("erasure_given_up", body, actor=ACTOR)
    async with leader.engine.begin() as connection:
        # its certificate is next; without a key, the certifying step ends the erasure
        state = await finish_erasure(connection, erasure, error=None, certifying=True)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state)


async def _fail(leader: Leader, erasure: Erasure, error: Exception) -> None:
    count_failure("hold_unreadable" if isinstance(error, HoldUnreadable) else "other")
    message = str(error) or "the filter cannot be answered in two minutes: narrow it"
    async with leader.engine.begin() as connection:
        await fail_erasure(connection, erasure.id, message)
    _log.warning("erasure", action="erasure", id=str(erasure.id), state="failed", error=message)


# Writes exports for a few seconds of each turn, between deletions, and deletes ended ones.
#
# It never runs beside an erasure of the same process: an erasure that takes a member finds the
# objects that are written, and no part that is written afterwards has it.

SHARE_SECONDS: Final = 10.0
"""Of a turn."""
_RETRY_SECONDS: Final = 30.0


async def write_exports(leader: Leader) -> None:
    """Carry exports out for a few seconds, each a step in turn, so that a small one does not wait
    for a large one. What cannot be written now says why, and is tried again."""
    until = time.monotonic() + SHARE_SECONDS
    await _remove_ended(leader)
    while time.monotonic() < until:
        async with leader.engine.connect() as connection:
            unfinished = await jobs.list_unfinished(connection)
        if not unfinished:
            return
        for job in unfinished:
            if time.monotonic() >= until:
                return
            await leader.check.confirm_step()
            await _take_step(leader, job)


async def _take_step(leader: Leader, job: ExportJob) -> None:
    """Take one step of a job; what goes wrong is recorded."""
    try:
        if job.state == "pending":
            await begin_listing(leader.engine, job)
        elif job.state == "listing":
            most, confirm = leader.settings.export_part_inferences, leader.check.confirm_leading
            about = (job, most, _find_limits(leader), confirm)
            listing = Listing(leader.engine, leader.blobs, *about).list_some()
            await leader.check.unless_stopped(listing)
        else:  # cut off between two batches alone: a thread would go on to write
            await _write(leader, job)
    except Invalid as error:
        async with leader.engine.begin() as connection:
            await jobs.fail_job(connection, job.id, error.detail)
        EXPORTS.labels("failed").inc()
        export = str(job.id)
        _log.warning("export failed", action="export_failed", export=export, error=error.detail)
    except (ObjectStoreUnavailable, OSError, OutOfTime) as error:
        await _delay(leader, job, error)


def _find_limits(leader: Leader) -> CopyLimits:
    return CopyLimits(leader.settings.export_blob_bytes, leader.settings.export_part_bytes)


async def _write(leader: Leader, job: ExportJob) -> None:
    async with leader.engine.connect() as connection:
        part = await jobs.find_next(connection, job.id)
    if part is None:
        confirm = leader.check.confirm_leading
        state = await finish_export(leader.engine, leader.blobs, job, confirm=confirm)
        EXPORTS.labels(state).inc()
        return
    size = await write_part(
        leader.engine,
        leader.blobs,
        job,
        part,
        limits=_find_limits(leader),
        confirm=leader.check.confirm_step,
    )
    EXPORTED_BYTES.inc(size)


async def _remove_ended(leader: Leader) -> None:
    """Delete parts for at most half of a turn's share; the next turn goes on."""
    until = time.monotonic() + SHARE_SECONDS / 2
    async with leader.engine.connect() as connection:
        ended = await jobs.list_removable(connection)
    for job in ended:
        if time.monotonic() >= until:
            return
        await leader.check.confirm_step()
        try:
            await remove_export(leader.engine, leader.blobs, job)
        except ObjectStoreUnavailable as error:
            await _delay(leader, job, error)
        else:
            EXPORTS.labels("cancelled" if job.state == "cancelling" else "expired").inc()


async def _delay(leader: Leader, job: ExportJob, error: Exception) -> None:
    reason = "the search took too long" if isinstance(error, OutOfTime) else str(error)
    async with leader.engine.begin() as connection:
        await jobs.delay_job(connection, job.id, reason, seconds=_RETRY_SECONDS)
    _log.warning("export waits", action="export_waits", export=str(job.id), error=reason[:500])
