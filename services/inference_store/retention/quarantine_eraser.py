"""Erases dead letters and parked events of erased inferences, with their bytes and objects.

As soon as one is removed, the erasure cannot be cancelled. Events that a legal hold protects
stay, and the erasure is then partly held. A search reads outside of any transaction, and writes
marks for the events of a subject to the ledger. Then the ledger has which events are removed,
of those that no hold protects by then: no hold is placed in the ledger's turn. Its effect, in
one transaction after the locks of the offset accounting and the fence, removes them and queues
their objects. After a crash before that, everything is searched again.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, quarantine
from inference_store.erasure.batches import describe_entry
from inference_store.erasure.held_deletions import QUARANTINE_SCOPE, record_held
from inference_store.erasure.progress import Erasure, begin_deleting, list_models
from inference_store.erasure.quarantine import EventMetadata, QuarantinedEvent
from inference_store.index import registrations
from inference_store.index.tables import unsettled_event
from inference_store.platform.failpoints import failpoint

from .leader import ACTOR, Leader

_log = structlog.get_logger()


async def remove_subject(leader: Leader, erasure: Erasure) -> None:
    """Mark the events of the erasure's subject, so that their objects are deleted, and remove
    them."""
    criteria = erasure.asked or {}
    names = await _find_names(leader, erasure)
    search = partial(
        quarantine.iterate_mentions, leader.connect, leader.blobs, criteria, names.values()
    )
    for model, name in sorted(names.items()):
        of_model = unsettled_event.c.model_id == name
        async for events, metadata in search(of_model, types_of=list(names)):
            async with leader.engine.connect() as connection:
                free, _ = await quarantine.split_by_hold(
                    connection, events, metadata, model=model, since=erasure.in_force_at
                )
                marks = [item.describe_mark() for item in free if item.event is not None]
                batch = await describe_entry(connection, erasure, model, marks)
            if marks:
                await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
            if not await _remove(leader, erasure, model, events, metadata):
                return
    # what is of no registered model has no mark: its objects become orphans
    beside = quarantine.match_unattributed(criteria, names.values())
    async for events, metadata in search(beside):
        if not await _remove(leader, erasure, None, events, metadata):
            return


async def remove_erased(leader: Leader, erasure: Erasure) -> None:
    """Remove events of inferences that were erased, by this erasure or before it."""
    ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
    buckets = leader.blobs.buckets
    for model, name in sorted((await _find_names(leader, erasure)).items()):
        of_model = unsettled_event.c.model_id == name
        async for page in quarantine.iterate_pages(leader.connect, of_model, buckets):
            async with leader.engine.connect() as connection:
                events = await quarantine.filter_erased(connection, model, page, ids)
                has_holds = bool(events) and bool(await holds.list_in_force(connection, [model]))
            metadata: EventMetadata = {}
            if has_holds:
                metadata = await asyncio.to_thread(quarantine.load_metadata, leader.blobs, events)
            if not await _remove(leader, erasure, model, events, metadata):
                return


async def _find_names(leader: Leader, erasure: Erasure) -> Mapping[int, str]:
    async with leader.engine.connect() as connection:
        return await registrations.names(connection, await list_models(connection, erasure))


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
