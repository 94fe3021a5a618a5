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
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.batches import (
    claim_orphans,
    describe_entry,
    describe_orphans_batch,
    list_claimed_orphans,
    list_pending_orphans,
    record_held_orphans,
    remove_orphans,
)
from inference_store.erasure.erased_lists import record_batch
from inference_store.erasure.held_deletions import QUARANTINE_SCOPE, record_held
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.progress import (
    Erasure,
    add_erased,
    advance_erasure,
    begin_deleting,
    find_erasure,
    find_state,
    finish_erasure,
    list_models,
)
from inference_store.erasure.quarantine import (
    EventMetadata,
    QuarantinedEvent,
    build_search,
    describe_removal,
    filter_by_subject,
    filter_erased,
    load_metadata,
    read_page,
    split_by_hold,
    split_unattributed_by_hold,
)
from inference_store.erasure.requests import Subject, build_predicate, find_subject
from inference_store.index import registrations
from inference_store.index.tables import unsettled_event
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs, Deleted
from inference_store.operations.reconcile import orphans, owned, stored_reports
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.retention.batch_eraser import (
    Batch,
    erase_objects,
    format_failures,
    record_failures,
)
from inference_store.retention.certifier import end_erasure
from inference_store.retention.leadership_check import ACTOR, Leader, OrphanProgress

_BATCH: Final = 1000
_log = structlog.get_logger()


async def erase_orphans(leader: Leader, erasure: Erasure, *, seconds: float) -> bool:
    """Work on an erasure; False: call again. True: it is over, or nothing can be done now.

    Raises ObjectStoreUnavailable and the errors of the database: try again.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            state = await find_state(connection, erasure.id)
        if state in {"cancelling", "cancelled"}:
            body = {"erasure": str(erasure.id)}
            await leader.ledger.write("erasure_cancelled", body, actor=ACTOR)
            return True
        progress = leader.orphans.setdefault(erasure.id, OrphanProgress())
        await _gather_names(leader, erasure, progress)
        if not await _step(leader, erasure, progress):
            del leader.orphans[erasure.id]
            await _finish(leader, erasure, progress.error)
            return True
    return False


async def _gather_names(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> None:
    if progress.gathered:
        return
    async with leader.engine.begin() as connection:
        # in the fence: a lower number may become visible after a higher one
        await fence_exclusive(connection)
        newest = await owned.find_newest(connection)
    async with leader.engine.begin() as connection:
        await orphans.ensure_report(connection, parse_report(erasure))
        await owned.store_names(connection, parse_report(erasure), leader.blobs.buckets)
    progress.seen = newest
    progress.gathered = True


async def _step(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> bool:
    async with leader.engine.connect() as connection:
        after = progress.after
        keys = await list_pending_orphans(connection, erasure.id, after=after, limit=_BATCH)
    if not keys:
        return await _name_next(leader, erasure, progress)
    progress.after = keys[-1]
    with stage(STEP_SECONDS, "claim"):
        claimed = await _claim(leader, erasure, progress, keys)
    failpoint("orphans.claim.after")
    if claimed:
        sizes = await _measure_aged(leader, erasure, claimed)
        await _erase(leader, erasure, progress, sizes)
    return True


async def _name_next(leader: Leader, erasure: Erasure, progress: OrphanProgress) -> bool:
    report = parse_report(erasure)
    async with leader.engine.begin() as connection:
        if not await advance_erasure(connection, erasure.id, "marking"):
            return True
        keys = await orphans.find_following(connection, report, after=progress.after)
        if not keys:
            return False
        judged = await orphans.judge(connection, report, keys)
        await _release(connection, erasure, keys, judged)
    failpoint("orphans.batch.before")
    if not judged.doomed:
        progress.after = keys[-1]
        return True
    body = describe_orphans_batch(erasure.id, judged.doomed)
    if not await leader.ledger.write("orphans_batch", body, actor=ACTOR):
        progress.after = keys[-1]  # another erasure has named them all
    failpoint("orphans.batch.after")
    return True


async def _claim(
    leader: Leader, erasure: Erasure, progress: OrphanProgress, keys: Sequence[str]
) -> list[str]:
    """Return the objects that may be deleted now; from the commit on nothing can be cancelled.

    A hold or an event that comes before the fence is released keeps its own.
    """
    report, gone = parse_report(erasure), await _find_deleted(leader, keys)
    existing = [key for key in keys if key not in gone]
    async with leader.engine.begin() as connection:
        await fence_exclusive(connection)
        progress.seen = await owned.store_names(
            connection, report, leader.blobs.buckets, after=progress.seen
        )
        judged = await orphans.judge(connection, report, existing)
        await _release(connection, erasure, existing, judged)
        doomed = sorted([*judged.doomed, *gone])
        if not doomed or not await begin_deleting(connection, erasure.id):
            return []
        await claim_orphans(connection, doomed)
    return doomed


async def _find_deleted(leader: Leader, keys: Sequence[str]) -> set[str]:
    """Return objects that were deleted before a crash; the certificate must name them too."""
    async with leader.engine.connect() as connection:
        claimed = await list_claimed_orphans(connection, keys)
    inspected = await asyncio.to_thread(inspect_objects, leader.blobs, sorted(claimed))
    return {key for key, (_, at) in inspected.items() if at is None}


async def _release(
    connection: AsyncConnection,
    erasure: Erasure,
    keys: Collection[str],
    judged: orphans.Judgement,
) -> None:
    unused = set(keys) - set(judged.doomed) - set(judged.held)
    await remove_orphans(connection, unused)
    await record_held_orphans(connection, erasure.id, judged.held)
    await orphans.record_state(connection, parse_report(erasure), unused, "kept")
    await orphans.record_state(connection, parse_report(erasure), judged.held, "held")


async def _measure_aged(leader: Leader, erasure: Erasure, keys: Sequence[str]) -> Mapping[str, int]:
    before = datetime.fromisoformat((erasure.asked or {})["before"])
    async with leader.engine.connect() as connection:
        waiting = await stored_reports.list_waiting(connection, now=before)
    if waiting and (since := min(at for at, _ in waiting)) != stored_reports.NEVER:
        before = min(before, since - timedelta(seconds=leader.settings.reconcile_grace_seconds))
    elif waiting:
        before = stored_reports.NEVER
    inspected = await asyncio.to_thread(inspect_objects, leader.blobs, keys)
    old = {
        key: size
        for key, (size, at) in inspected.items()
        if at is None or owned.is_older(at, before)
    }
    young = set(keys) - set(old)
    if young:
        async with leader.engine.begin() as connection:
            await remove_orphans(connection, young)
            await orphans.record_state(connection, parse_report(erasure), young, "kept")
    return old


async def _erase(
    leader: Leader, erasure: Erasure, progress: OrphanProgress, sizes: Mapping[str, int]
) -> None:
    if not sizes:
        return
    batch = Batch((), frozenset(sizes), None)
    deleted, faults = await erase_objects(leader, erasure, batch, None)
    progress.error = progress.error or format_failures(faults)
    blocked = {fault.key for fault in faults}
    gone = {key: sizes[key] for key in sorted(sizes) if parse_stored(key) not in blocked}
    failpoint("orphans.forget.before")
    with stage(STEP_SECONDS, "forget"):
        if gone:
            await _forget(leader, erasure, gone, deleted)
        keys = [parse_stored(key) for key in gone]
        await record_failures(leader, erasure, faults, keys)
    failpoint("orphans.forget.after")


async def _forget(
    leader: Leader, erasure: Erasure, gone: Mapping[str, int], deleted: Deleted
) -> None:
    size, versions = deleted.bytes or sum(gone.values()), deleted.versions
    keys, scope = [parse_stored(key) for key in gone], erasure.scope
    async with leader.engine.begin() as connection:
        await remove_orphans(connection, gone)
        await orphans.record_state(connection, parse_report(erasure), gone, "erased")
        await add_erased(connection, erasure.id, objects=len(gone), versions=versions, bytes=size)
        if leader.certifier is not None:
            key = await leader.certifier.key_of(connection, erasure.id)
            await record_batch(connection, key, erasure.id, scope=scope, uids=(), objects=keys)
    OBJECTS_DELETED.inc(len(gone))
    ERASED.labels(erasure.scope).inc(len(gone))


async def _finish(leader: Leader, erasure: Erasure, error: str | None) -> None:
    async with leader.engine.begin() as connection:
        certifying = leader.certifier is not None
        state = await finish_erasure(connection, erasure, error=error, certifying=certifying)
        if state != "failed":
            await owned.remove_names(connection, parse_report(erasure))
        erasure = await find_erasure(connection, erasure.id) or erasure
    state = await end_erasure(leader.engine, leader.certifier, erasure, state)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state, error=error)


_THREADS: Final = 16


def inspect_objects(blobs: Blobs, keys: Sequence[str]) -> dict[str, tuple[int, datetime | None]]:
    """Return the size and write time of each object; no time: it has no current version. Blocks."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="orphans") as executor:
        inspected = executor.map(lambda key: _inspect_object(blobs, key), keys)
        return dict(zip(keys, inspected, strict=True))


def _inspect_object(blobs: Blobs, key: str) -> tuple[int, datetime | None]:
    storage_key = parse_stored(key)
    objects = blobs.page(storage_key.bucket, storage_key.key, after="", limit=1)
    if objects and objects[0].place == storage_key:
        return objects[0].size, objects[0].modified_at
    return 0, None


def parse_report(erasure: Erasure) -> UUID:
    """Return the id of the report."""
    return UUID((erasure.asked or {})["report"])


# Erases dead letters and parked events of erased inferences, with their bytes and objects.
#
# As soon as one is removed, the erasure cannot be cancelled. Events that a legal hold protects
# stay, and the erasure is then partly held. A search reads outside of any transaction, and writes
# marks for the events of a subject to the ledger. Then the ledger has which events are removed,
# of those that no hold protects by then: no hold is placed in the ledger's turn. Its effect, in
# one transaction after the locks of the offset accounting and the fence, removes them and queues
# their objects. After a crash before that, everything is searched again.


async def remove_subject(leader: Leader, erasure: Erasure) -> None:
    """Mark the events of the erasure's subject, so that their objects are deleted, and remove
    them."""
    subject = find_subject(erasure.asked)
    if subject is None or erasure.asked is None:
        return
    async with leader.engine.connect() as connection:
        models = await list_models(connection, erasure)
        predicate = await build_predicate(connection, models, erasure.asked)
    async for model, page in _iterate_pages(leader, erasure):
        metadata = await asyncio.to_thread(load_metadata, leader.blobs, page)
        async with leader.engine.connect() as connection:
            events = await filter_by_subject(connection, page, subject, predicate, metadata)
            free, _ = await split_by_hold(connection, erasure, model, events, metadata)
            marks = [
                quarantined.describe_mark() for quarantined in free if quarantined.event is not None
            ]
            batch = await describe_entry(connection, erasure, model, marks)
        if marks:
            await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
        if not await _remove(leader, erasure, model, events, metadata):
            return
    await _remove_unattributed(leader, erasure, subject, erasure.asked)


async def _remove_unattributed(
    leader: Leader, erasure: Erasure, subject: Subject, criteria: Mapping[str, Any]
) -> None:
    """Remove what mentions the subject and is of no registered model. It has no mark: its
    objects become orphans."""
    async with leader.engine.connect() as connection:
        models = await list_models(connection, erasure)
        names = await registrations.names(connection, set(models))
        predicate = await build_predicate(connection, [], criteria)  # of any type
    search = build_search(criteria, names.values())
    async for page in _iterate_events(leader, search.match()):
        metadata = await asyncio.to_thread(load_metadata, leader.blobs, page)
        async with leader.engine.connect() as connection:
            events = await search.filter_by_subject(connection, page, subject, predicate, metadata)
        if not await _remove(leader, erasure, None, events, metadata):
            return


async def remove_erased(leader: Leader, erasure: Erasure) -> None:
    """Remove events of inferences that were erased, by this erasure or before it."""
    ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
    async for model, page in _iterate_pages(leader, erasure):
        async with leader.engine.connect() as connection:
            events = await filter_erased(connection, model, page, ids)
            has_holds = bool(events) and bool(await holds.list_in_force(connection, [model]))
        metadata = await asyncio.to_thread(load_metadata, leader.blobs, events) if has_holds else {}
        if not await _remove(leader, erasure, model, events, metadata):
            return


async def _iterate_pages(
    leader: Leader, erasure: Erasure
) -> AsyncIterator[tuple[int, list[QuarantinedEvent]]]:
    async with leader.engine.connect() as connection:
        models = await list_models(connection, erasure)
        names = await registrations.names(connection, set(models))
    for model, name in sorted(names.items()):
        async for page in _iterate_events(leader, unsettled_event.c.model_id == name):
            yield model, page


async def _iterate_events(
    leader: Leader, condition: ColumnElement[bool]
) -> AsyncIterator[list[QuarantinedEvent]]:
    after, buckets = 0, leader.blobs.buckets
    while True:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            page = await read_page(connection, condition, after=after, buckets=buckets)
        if not page:
            return
        yield page
        after = page[-1].id


async def _remove(
    leader: Leader,
    erasure: Erasure,
    model: int | None,
    events: list[QuarantinedEvent],
    metadata: EventMetadata,
) -> bool:
    """Remove the events that no hold protects; False if the erasure was cancelled meanwhile.

    `model` None: they are of none.
    """
    if not events:
        return True
    failpoint("retention.aside.take.before")
    about = (erasure, model, events)
    async with leader.engine.begin() as connection:
        free = await _keep_held(connection, *about, metadata=metadata)
        if free and not await begin_deleting(connection, erasure.id):
            return False
        name = None
        if model is not None:
            name = (await registrations.names(connection, {model})).get(model)

    async def describe(connection: AsyncConnection) -> dict[str, Any]:
        return describe_removal(
            erasure.id, name, await _keep_held(connection, *about, metadata=metadata)
        )

    removed = 0
    if free:
        removed = await leader.ledger.write("quarantine_erased", describe, actor=ACTOR)
    failpoint("retention.aside.take.after")
    counts = {"count": removed, "held": len(events) - len(free)}
    _log.info("quarantined events removed", action="erased_aside", id=str(erasure.id), **counts)
    return True


async def _keep_held(
    connection: AsyncConnection,
    erasure: Erasure,
    model: int | None,
    events: list[QuarantinedEvent],
    *,
    metadata: EventMetadata,
) -> list[QuarantinedEvent]:
    if model is None:
        free, held = await split_unattributed_by_hold(connection, events, metadata)
    else:
        free, held = await split_by_hold(connection, erasure, model, events, metadata)
    if model is None:
        # it stands under the erasure's first model, so that a waiver can name it
        model = min(await list_models(connection, erasure), default=0)
    await record_held(connection, erasure.id, model, QUARANTINE_SCOPE, held)
    return free
