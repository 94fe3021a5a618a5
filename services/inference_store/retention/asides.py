"""Dead letters and parked events of what is being erased go with it: bytes, objects and all."""

import asyncio
from collections.abc import AsyncIterator

import structlog
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import registrations
from inference_store.store.blobs import Blobs
from inference_store.store.errors import BlobForbidden, BlobMissing, BlobTooLarge
from inference_store.store.events import InferenceEvent
from inference_store.store.failpoints import failpoint
from inference_store.store.ledger import Ledger
from inference_store.store.retention import erasures
from inference_store.store.retention.erasures import Erasure, chosen, marking, unstored
from inference_store.store.retention.erasures.unstored import Aside

from .pace import Pace

_METADATA_BYTES = 1024 * 1024
_log = structlog.get_logger()


class Asides:
    """Looks through what is set aside, once an erasure. Raises BlobsAway and the database's
    trouble: look again later."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, pace: Pace) -> None:
        self._engine = engine
        self._blobs = blobs
        self._pace = pace

    async def take_subject(self, one: Erasure, ledger: Ledger, *, actor: str) -> None:
        """What tells of the erasure's subject: marked, so that its objects go, and taken away."""
        subject = chosen.subject_in(one.asked)
        if subject is None or one.asked is None:
            return
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, one)
            truth = await chosen.truth_of(connection, models, one.asked)
        async for model, table, some in self._pages(one):
            found = await asyncio.to_thread(
                unstored.of_subject, some, subject, truth, self._metadata_of
            )
            marks = [each.mark() for each in found if each.event is not None]
            if marks:
                async with self._engine.connect() as connection:
                    batch = await marking.entry(connection, one, model, marks)
                await ledger.write("erasure_batch", batch, actor=actor)
            await self._take(one, table, found)

    async def take_erased(self, one: Erasure) -> None:
        """What tells of inferences that were erased, by this erasure or before it."""
        ids = frozenset((one.asked or {}).get("inference_ids", ()))
        async for model, table, some in self._pages(one):
            async with self._engine.connect() as connection:
                found = await unstored.erased(connection, model, some, ids)
            await self._take(one, table, found)

    async def _pages(self, one: Erasure) -> AsyncIterator[tuple[int, Table, list[Aside]]]:
        async with self._engine.connect() as connection:
            models = await erasures.models_of(connection, one)
            names = await registrations.names(connection, set(models))
        for model, name in sorted(names.items()):
            for table in unstored.TABLES:
                after = 0
                while some := await self._page(table, name, after):
                    yield model, table, some
                    after = some[-1].id

    async def _page(self, table: Table, model_id: str, after: int) -> list[Aside]:
        await self._pace.next_step()
        async with self._engine.connect() as connection:
            return await unstored.page(
                connection, table, model_id, after=after, buckets=self._blobs.buckets
            )

    async def _take(self, one: Erasure, table: Table, found: list[Aside]) -> None:
        if not found:
            return
        failpoint("retention.aside.take.before")
        async with self._engine.begin() as connection:
            taken = await unstored.take(
                connection, table, found, because=f"erased by the erasure {one.id}"
            )
            await erasures.count(connection, one.id, table_rows={table.name: taken})
        failpoint("retention.aside.take.after")
        _log.info("taken", action="erased_aside", id=str(one.id), table=table.name, count=taken)

    def _metadata_of(self, event: InferenceEvent) -> bytes | None:
        if event.inline_metadata is not None:
            return event.inline_metadata
        if event.metadata is None:
            return b""
        try:
            return self._blobs.get(event.metadata, limit=_METADATA_BYTES)
        except (BlobMissing, BlobForbidden, BlobTooLarge):
            return None
