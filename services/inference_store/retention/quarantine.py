"""Erases dead letters and parked events of erased inferences, with their bytes and objects.

As soon as one is removed, the erasure cannot be cancelled. Events that a legal hold protects stay,
and the erasure is then partly held. A search reads outside of any transaction, and writes marks for
the events of a subject to the ledger. Then the ledger has which events are removed, of those that
no hold protects by then: no hold is placed in the ledger's turn. Its effect, in one transaction
after the locks of the offset accounting and the fence, removes them and queues their objects. After
a crash before that, everything is searched again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark.batches import describe_entry
from inference_store.erasure.mark.held_deletions import QUARANTINE_SCOPE, HeldRow, record_held
from inference_store.erasure.progress import Erasure, begin_deleting, list_models
from inference_store.erasure.quarantine.events import (
    EventMetadata,
    QuarantinedEvent,
    build_search,
    filter_by_subject,
    filter_erased,
    load_metadata,
    read_page,
)
from inference_store.erasure.quarantine.removal import (
    describe_removal,
    split_by_hold,
    split_unattributed_by_hold,
)
from inference_store.erasure.requests import Subject, build_predicate, find_subject
from inference_store.index import registrations
from inference_store.index.tables import unsettled_event
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from .leadership_check import ACTOR, LeadershipCheck

_log = structlog.get_logger()


class QuarantineEraser:
    """Searches quarantined events, once for each erasure.

    Raises ObjectStoreUnavailable and the errors of the database: search again later.
    """

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, ledger: Ledger, check: LeadershipCheck
    ) -> None:
        self._engine = engine
        self._blobs = blobs
        self._ledger = ledger
        self._check = check

    async def remove_subject(self, erasure: Erasure) -> None:
        """Mark the events of the erasure's subject, so that their objects are deleted, and remove
        them."""
        subject = find_subject(erasure.asked)
        if subject is None or erasure.asked is None:
            return
        async with self._engine.connect() as connection:
            models = await list_models(connection, erasure)
            predicate = await build_predicate(connection, models, erasure.asked)
        async for model, page in self._iterate_pages(erasure):
            metadata = await asyncio.to_thread(load_metadata, self._blobs, page)
            events = filter_by_subject(page, subject, predicate, metadata)
            async with self._engine.connect() as connection:
                free, _ = await split_by_hold(connection, erasure, model, events, metadata)
                marks = [
                    quarantined.describe_mark()
                    for quarantined in free
                    if quarantined.event is not None
                ]
                batch = await describe_entry(connection, erasure, model, marks)
            if marks:
                await self._ledger.write("erasure_batch", batch, actor=ACTOR)
            if not await self._remove(erasure, model, events, metadata):
                return
        await self._remove_unattributed(erasure, subject, erasure.asked)

    async def _remove_unattributed(
        self, erasure: Erasure, subject: Subject, criteria: Mapping[str, Any]
    ) -> None:
        """Remove what mentions the subject and is of no registered model. It has no mark: its
        objects become orphans."""
        async with self._engine.connect() as connection:
            models = await list_models(connection, erasure)
            names = await registrations.names(connection, set(models))
            predicate = await build_predicate(connection, [], criteria)  # of any type
        search = build_search(criteria, names.values())
        async for page in self._iterate_events(search.match()):
            metadata = await asyncio.to_thread(load_metadata, self._blobs, page)
            events = search.filter_by_subject(page, subject, predicate, metadata)
            if not await self._remove(erasure, None, events, metadata):
                return

    async def remove_erased(self, erasure: Erasure) -> None:
        """Remove events of inferences that were erased, by this erasure or before it."""
        ids = frozenset((erasure.asked or {}).get("inference_ids", ()))
        async for model, page in self._iterate_pages(erasure):
            async with self._engine.connect() as connection:
                events = await filter_erased(connection, model, page, ids)
                has_holds = bool(events) and bool(await holds.list_in_force(connection, [model]))
            metadata = (
                await asyncio.to_thread(load_metadata, self._blobs, events) if has_holds else {}
            )
            if not await self._remove(erasure, model, events, metadata):
                return

    async def _iterate_pages(
        self, erasure: Erasure
    ) -> AsyncIterator[tuple[int, list[QuarantinedEvent]]]:
        async with self._engine.connect() as connection:
            models = await list_models(connection, erasure)
            names = await registrations.names(connection, set(models))
        for model, name in sorted(names.items()):
            async for page in self._iterate_events(unsettled_event.c.model_id == name):
                yield model, page

    async def _iterate_events(
        self, condition: ColumnElement[bool]
    ) -> AsyncIterator[list[QuarantinedEvent]]:
        after = 0
        while page := await self._read_page(condition, after):
            yield page
            after = page[-1].id

    async def _read_page(
        self, condition: ColumnElement[bool], after: int
    ) -> list[QuarantinedEvent]:
        await self._check.confirm_step()
        async with self._engine.connect() as connection:
            return await read_page(connection, condition, after=after, buckets=self._blobs.buckets)

    async def _remove(
        self,
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
        async with self._engine.begin() as connection:
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
            removed = await self._ledger.write("quarantine_erased", describe, actor=ACTOR)
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
    await _record_held(connection, erasure, model, held)
    return free


async def _record_held(
    connection: AsyncConnection,
    erasure: Erasure,
    model: int | None,
    held: list[HeldRow],
) -> None:
    """Record what holds keep. What is of no model stands under the erasure's first one, so that a
    waiver can name it."""
    if model is None:
        model = min(await list_models(connection, erasure), default=0)
    await record_held(connection, erasure.id, model, QUARANTINE_SCOPE, held)
