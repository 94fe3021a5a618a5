"""Erases dead letters and parked events of erased inferences, with their bytes and objects.

As soon as one is removed, the erasure cannot be cancelled. Events that a legal hold protects
stay, and the erasure is then partly held. A search reads outside of any transaction, and writes
marks for the events of a subject to the ledger. Then the ledger has which events are removed,
of those that no hold protects by then: no hold is placed in the ledger's turn. Its effect, in
one transaction after the locks of the offset accounting and the fence, removes them and queues
their objects. After a crash before that, everything is searched again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, quarantine
from inference_store.erasure.batches import describe_entry
from inference_store.erasure.held_deletions import QUARANTINE_SCOPE, record_held
from inference_store.erasure.progress import Erasure, begin_deleting, list_models
from inference_store.erasure.quarantine import EventMetadata, QuarantinedEvent
from inference_store.erasure.requests import Subject, build_predicate, find_subject
from inference_store.index import registrations
from inference_store.index.tables import unsettled_event
from inference_store.platform.failpoints import failpoint

from .leader import ACTOR, Leader

_log = structlog.get_logger()


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
        metadata = await asyncio.to_thread(quarantine.load_metadata, leader.blobs, page)
        async with leader.engine.connect() as connection:
            events = await quarantine.filter_by_subject(
                connection, page, subject, predicate, metadata
            )
            free, _ = await quarantine.split_by_hold(
                connection, events, metadata, model=model, since=erasure.in_force_at
            )
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
    search = quarantine.build_search(criteria, names.values())
    async for page in _iterate_events(leader, search.match()):
        metadata = await asyncio.to_thread(quarantine.load_metadata, leader.blobs, page)
        async with leader.engine.connect() as connection:
            events = await search.filter_by_subject(connection, page, subject, predicate, metadata)
        if not await _remove(leader, erasure, None, events, metadata):
            return


async def remove_erased(leader: Leader, erasure: Erasure) -> None:
    """Remove events of inferences that were erased, by this erasure or before it."""
    ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
    async for model, page in _iterate_pages(leader, erasure):
        async with leader.engine.connect() as connection:
            events = await quarantine.filter_erased(connection, model, page, ids)
            has_holds = bool(events) and bool(await holds.list_in_force(connection, [model]))
        metadata = (
            await asyncio.to_thread(quarantine.load_metadata, leader.blobs, events)
            if has_holds
            else {}
        )
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
            page = await quarantine.read_page(connection, condition, after=after, buckets=buckets)
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
        return quarantine.describe_removal(
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
    free, held = await quarantine.split_by_hold(
        connection, events, metadata, model=model, since=erasure.in_force_at
    )
    if model is None:
        # it stands under the erasure's first model, so that a waiver can name it
        model = min(await list_models(connection, erasure), default=0)
    await record_held(connection, erasure.id, model, QUARANTINE_SCOPE, held)
    return free
