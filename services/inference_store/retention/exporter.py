"""Exports and replays: a step of each for a few seconds of each turn, between deletions. What an
export wrote is deleted once it ended. Below: their parts that name what an erasure erased.

It never runs beside an erasure of the same process: an erasure that takes a member finds the
objects that are written, no part that is written afterwards has it, and it is not sent.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from inference_store.erasure.progress import Erasure
from inference_store.export import jobs
from inference_store.export.erased import FIRST_PART, TouchedPart, forget_objects, list_touched
from inference_store.export.jobs import ExportJob, make_manifest_key
from inference_store.export.listing import Listing, begin_listing
from inference_store.export.part_formats import CopyLimits
from inference_store.export.part_writing import finish_export, remove_export, write_part
from inference_store.inference.errors import Invalid, ObjectStoreUnavailable, Unavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, DeleteFault
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import EXPORTED_BYTES, EXPORTS, REPLAYED
from inference_store.query.deadline import OutOfTime
from inference_store.replay.differences import compare_some
from inference_store.replay.items import is_settled, list_some
from inference_store.replay.sending import send_some

from .batch_eraser import format_failures, merge_faults, record_failures
from .leader import Leader

SHARE_SECONDS: Final = 10.0
"""Of a turn."""
_RETRY_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 1.0
"""After which a replay looks again for the inferences of its calls."""
_log = structlog.get_logger()


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
        elif job.format == jobs.REPLAY:
            await _replay(leader, job)
        elif job.state == "listing":
            most, confirm = leader.settings.export_part_inferences, leader.check.confirm_leading
            about = (job, most, _find_limits(leader), confirm)
            listing = Listing(leader.engine, leader.blobs, *about).list_some()
            await leader.check.unless_stopped(listing)
        else:  # cut off between two batches alone: a thread would go on to write
            await _write(leader, job)
    except Invalid as error:
        async with leader.engine.begin() as connection:
            why = error.detail[: jobs.MOST_ERROR_CHARACTERS]
            await jobs.move_job(connection, job.id, "failed", error=why)
        EXPORTS.labels("failed").inc()
        export = str(job.id)
        _log.warning("export failed", action="export_failed", export=export, error=error.detail)
    except (ObjectStoreUnavailable, Unavailable, OSError, OutOfTime) as error:
        await _delay(leader, job, error)


async def _replay(leader: Leader, job: ExportJob) -> None:
    if job.state == "listing":
        listing = list_some(leader.engine, job, leader.check.confirm_leading)
        await leader.check.unless_stopped(listing)
        return
    settings, check = leader.settings, leader.check
    # cut off between two batches alone: nobody would know what was sent of one
    pause = await send_some(leader.engine, leader.blobs, job, settings, check.confirm_step)
    changed = await compare_some(leader.engine, job, wait_seconds=settings.replay_wait_seconds)
    REPLAYED.inc(changed)
    async with leader.engine.begin() as connection:
        if pause is None and await is_settled(connection, job.id):
            await jobs.finish_job(connection, job.id)
        else:
            pause = _LOOK_SECONDS if pause is None else pause
            await jobs.delay_job(connection, job.id, None, seconds=pause)


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


# Deletes the parts of exports that name what an erasure erased. The order makes every crash
# harmless:
#
# 1. record   (`export.erased`) with the rows of each batch: lists are without its uids, and parts
#             that have an object are stale, so that nobody is given a link to them
# 2. delete   the objects of stale parts and the manifests that name them, in every version
# 3. verify   by listing again that they are gone
# 4. forget   the keys of the objects
#
# A crash before 4 leaves the keys, and the next run begins again at 2: deleting an object twice
# is no error. If an object still exists (S3 has locked it), its key stays, and the erasure fails:
# it gets no certificate.

_PAGE = 100


async def delete_copies(leader: Leader, erasure: Erasure) -> str | None:
    """Delete what the erasure has recorded in exports; return the first failures as a text.
    Repeatable."""
    after, failures = FIRST_PART, None
    while True:
        async with leader.engine.connect() as connection:
            parts = await list_touched(connection, erasure.id, after=after, limit=_PAGE)
        if not parts:
            return failures
        await leader.check.confirm_step()
        faults = await _delete_page(leader, erasure, parts)
        failures = failures or format_failures(faults)
        after = parts[-1].export, parts[-1].number


async def _delete_page(
    leader: Leader, erasure: Erasure, parts: Sequence[TouchedPart]
) -> list[DeleteFault]:
    """Delete the objects of these parts, and forget those that are gone; return the faults."""
    bucket = leader.blobs.buckets.default
    failpoint("retention.export_delete.before")
    faults = await asyncio.to_thread(_delete_objects, leader.blobs, parts)
    failpoint("retention.export_delete.after")
    remaining = {fault.key for fault in faults}
    gone = [part for part in parts if remaining.isdisjoint(_list_objects_of(part, bucket))]
    async with leader.engine.begin() as connection:
        await forget_objects(connection, gone)
    failpoint("retention.export_forget.after")
    keys = [key for part in gone for key in _list_objects_of(part, bucket)]
    await record_failures(leader, erasure, faults, keys)
    return faults


def _delete_objects(blobs: Blobs, parts: Sequence[TouchedPart]) -> list[DeleteFault]:
    """Delete objects; return faults for what is there still. Blocks."""
    bucket = blobs.buckets.default
    keys = list({key for part in parts for key in _list_objects_of(part, bucket)})
    return merge_faults(blobs.delete_objects(keys), keys, blobs.still_there(keys))


def _list_objects_of(part: TouchedPart, bucket: str) -> list[StorageKey]:
    """List every object that may have what was erased; if one is left, the part keeps its key."""
    if part.storage_key is None:
        return []
    return [parse_stored(part.storage_key), StorageKey(bucket, make_manifest_key(part.export))]
