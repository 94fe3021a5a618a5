"""Erases the orphans of a report, batch by batch. The order makes every crash harmless:

1. judge    find the objects of the report that are still unnamed and not held; write them to the
            ledger
2. claim    check it once more, in the fence: from its commit on no event that names one is stored
3. age      read when each was written: objects written again after the report stay
4. delete   in every version, and verify by listing again
5. forget   remove their names, and record it for the certificate and the report, in one transaction

A crash before 5 leaves the names, and the next turn begins again at 2.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import batches
from inference_store.erasure.erased_lists import record_batch
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.pending_deletions import find_claimed_objects
from inference_store.erasure.progress import (
    STOPPED,
    Erasure,
    add_erased,
    advance_erasure,
    begin_deleting,
    find_state,
)
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans, owned, stored_reports
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.traces import stage

from .batch_eraser import Batch, erase_objects, format_failures, record_failures
from .eraser import conclude, unmark
from .leader import ACTOR, Leader, OrphanProgress

_BATCH: Final = 1000


async def erase_orphans(leader: Leader, erasure: Erasure, *, seconds: float) -> bool:
    """Work on an erasure; False: call again. True: it is over, or nothing can be done now.

    Raises ObjectStoreUnavailable and the errors of the database: try again.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            state = await find_state(connection, erasure.id)
        if state in STOPPED:
            await unmark(leader, erasure)
            return True
        progress = leader.orphans.setdefault(erasure.id, OrphanProgress())
        await _gather_names(leader, erasure, progress)
        if not await _step(leader, erasure, progress):
            del leader.orphans[erasure.id]
            async with leader.engine.begin() as connection:
                # a failed erasure gathers them again
                await owned.remove_names(connection, orphans.parse_report(erasure))
            await conclude(leader, erasure, error=progress.error)
            return True
    return False


async def _gather_names(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> None:
    if progress.gathered:
        return
    async with leader.engine.begin() as connection:
        # in the fence: a lower number may become visible after a higher one
        await fence_exclusive(connection)
        newest = await owned.find_newest(connection)
    report = orphans.parse_report(erasure)
    async with leader.engine.begin() as connection:
        await orphans.ensure_report(connection, report)
        await owned.store_names(connection, report, leader.blobs.buckets)
    progress.seen = newest
    progress.gathered = True


async def _step(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> bool:
    async with leader.engine.connect() as connection:
        after = progress.after
        keys = await batches.list_named_objects(connection, erasure.id, after=after, limit=_BATCH)
    if not keys:
        return await _name_next(leader, erasure, progress)
    progress.after = keys[-1]
    with stage(STEP_SECONDS, "claim"):
        claimed = await _claim(leader, erasure, progress, keys)
    failpoint("orphans.claim.after")
    if claimed and (sizes := await _measure_aged(leader, erasure, claimed)):
        await _erase(leader, erasure, progress, sizes)
    return True


async def _name_next(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> bool:
    async with leader.engine.begin() as connection:
        if not await advance_erasure(connection, erasure.id, "marking"):
            return True
        report = orphans.parse_report(erasure)
        keys = await orphans.find_following(connection, report, after=progress.after)
        if not keys:
            return False
        doomed = await _judge(connection, erasure, keys)
    failpoint("orphans.batch.before")
    if not doomed:
        progress.after = keys[-1]
        return True
    body = {"erasure": str(erasure.id), "storage_keys": doomed}
    if not await leader.ledger.write("erasure_batch", body, actor=ACTOR):
        progress.after = keys[-1]  # another erasure has named them all
    failpoint("orphans.batch.after")
    return True


async def _claim(
    leader: Leader, erasure: Erasure, progress: OrphanProgress, keys: Sequence[str]
) -> list[str]:
    """Return the objects that may be deleted now; from the commit on nothing can be cancelled.

    A hold or an event that comes before the fence is released keeps its own.
    """
    async with leader.engine.connect() as connection:
        claimed = await find_claimed_objects(connection, keys)
    # those that were deleted before a crash; the certificate must name them too
    inspected = await asyncio.to_thread(_inspect_objects, leader.blobs, sorted(claimed))
    gone = {key for key, (_, at) in inspected.items() if at is None}
    existing = [key for key in keys if key not in gone]
    async with leader.engine.begin() as connection:
        await fence_exclusive(connection)
        report, buckets = orphans.parse_report(erasure), leader.blobs.buckets
        progress.seen = await owned.store_names(connection, report, buckets, after=progress.seen)
        doomed = sorted([*await _judge(connection, erasure, existing), *gone])
        if not doomed or not await begin_deleting(connection, erasure.id):
            return []
        await batches.claim_objects(connection, doomed)
    return doomed


async def _judge(connection: AsyncConnection, erasure: Erasure, keys: Collection[str]) -> list[str]:
    """Return those that are still orphans and that no hold protects; settle the others."""
    doomed, held = await orphans.judge(connection, orphans.parse_report(erasure), keys)
    await orphans.settle(connection, erasure, set(keys).difference(doomed, held), "kept")
    await orphans.settle(connection, erasure, held, "held")
    await add_erased(connection, erasure.id, held=len(held))
    return doomed


async def _measure_aged(leader: Leader, erasure: Erasure, keys: Sequence[str]) -> Mapping[str, int]:
    before = datetime.fromisoformat((erasure.asked or {})["before"])
    async with leader.engine.connect() as connection:
        waiting = await stored_reports.list_waiting(connection, now=before)
    if waiting and (since := min(at for at, _ in waiting)) != stored_reports.NEVER:
        before = min(before, since - timedelta(seconds=leader.settings.reconcile_grace_seconds))
    elif waiting:
        before = stored_reports.NEVER
    inspected = await asyncio.to_thread(_inspect_objects, leader.blobs, keys)
    old = {
        key: size
        for key, (size, at) in inspected.items()
        if at is None or owned.is_older(at, before)
    }
    async with leader.engine.begin() as connection:
        await orphans.settle(connection, erasure, set(keys) - set(old), "kept")
    return old


async def _erase(
    leader: Leader, erasure: Erasure, progress: OrphanProgress, sizes: Mapping[str, int]
) -> None:
    batch = Batch((), frozenset(sizes), None)
    deleted, faults, _ = await erase_objects(leader, erasure, batch, None)
    progress.error = progress.error or format_failures(faults)
    blocked = {fault.key for fault in faults}
    gone = [key for key in sorted(sizes) if parse_stored(key) not in blocked]
    objects = [parse_stored(key) for key in gone]
    failpoint("orphans.forget.before")
    with stage(STEP_SECONDS, "forget"):
        if gone:
            size = deleted.bytes or sum(sizes[key] for key in gone)
            count, versions = len(gone), deleted.versions
            async with leader.engine.begin() as connection:
                await orphans.settle(connection, erasure, gone, "erased")
                await add_erased(
                    connection, erasure.id, objects=count, versions=versions, bytes=size
                )
                # a replay has erased them again if there is a certificate: it has all of them
                if leader.certifier is not None and erasure.certificate is None:
                    key, scope = leader.certifier.key, erasure.scope
                    about = connection, key, erasure.id
                    await record_batch(*about, scope=scope, uids=(), objects=objects)
        await record_failures(leader, erasure, faults, objects)
    OBJECTS_DELETED.inc(len(gone))
    ERASED.labels(erasure.scope).inc(len(gone))
    failpoint("orphans.forget.after")


_THREADS: Final = 16


def _inspect_objects(blobs: Blobs, keys: Sequence[str]) -> dict[str, tuple[int, datetime | None]]:
    """Return the size and write time of each object; no time: it has no current version. Blocks."""

    def inspect(key: str) -> tuple[int, datetime | None]:
        place = parse_stored(key)
        found = blobs.page(place.bucket, place.key, after="", limit=1)
        is_there = bool(found) and found[0].place == place
        return (found[0].size, found[0].modified_at) if is_there else (0, None)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="orphans") as executor:
        return dict(zip(keys, executor.map(inspect, keys), strict=True))
