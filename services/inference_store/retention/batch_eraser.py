"""Erases one claimed batch: deletes its objects, verifies that, and deletes its rows.

Batches overlap, in the order in which they begin: objects are listed for one batch at a time, and
deleted for one batch at a time, and so are rows.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify.batch_record import record_erased
from inference_store.erasure.delete import rows, shared_metadata
from inference_store.erasure.mark.pending_deletions import PendingDeletion
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import add_erased, advance_erasure
from inference_store.objects import Blobs, Deleted, DeleteFault, Listed
from inference_store.platform.failpoints import failpoint, failpoint_of_task
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.stages import stage

from .batch import Batch
from .certifier import Certifier
from .erasure_failures import format_failures, list_objects_of, record_failures
from .export_records import record_in_exports
from .objects import erase_objects, list_objects


class BatchEraser:
    """Erases batches. Raises BlobsAway and the errors of the database: try again later."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, certifier: Certifier | None) -> None:
        self._engine = engine
        self._blobs = blobs
        self._certifier = certifier
        self._listing = asyncio.Lock()
        self._objects = asyncio.Lock()
        self._rows = asyncio.Lock()

    async def erase(
        self, erasure: Erasure, batch: Batch, *, whole_span: bool = False
    ) -> str | None:
        """Delete a batch, verify that it is gone, and forget it; return the failures as a text."""
        if not batch.page:
            return None
        async with self._list_objects(batch) as listed:
            deleted, faults = await erase_objects(self._engine, self._blobs, erasure, batch, listed)
        async with self._rows:
            await self._end_batch(erasure, batch, deleted, faults, whole_span=whole_span)
        return format_failures(faults)

    @asynccontextmanager
    async def _list_objects(self, batch: Batch) -> AsyncIterator[Listed]:
        """List the objects while the batch before is deleted, then wait for their turn."""
        async with self._listing:
            listed = await list_objects(self._blobs, batch)
            # before the next batch is listed, so that the order stays
            await self._objects.acquire()
        try:
            yield listed
        finally:
            self._objects.release()

    async def _end_batch(
        self,
        erasure: Erasure,
        batch: Batch,
        deleted: Deleted,
        faults: list[DeleteFault],
        *,
        whole_span: bool,
    ) -> None:
        page, doomed = batch.page, batch.doomed
        done, objects = page, len(doomed)
        if remaining := {fault.key for fault in faults}:
            done = [mark for mark in page if remaining.isdisjoint(list_objects_of(mark))]
            stay = [mark for mark in page if not remaining.isdisjoint(list_objects_of(mark))]
            # the deleted objects of inferences that stay are counted when those are erased
            objects = len(doomed - {key for mark in stay for key in mark.doomed})
        # inferences after one that stays are recorded one by one
        whole_span = whole_span and len(done) == len(page) and not batch.has_spared
        with stage(STEP_SECONDS, "forget"):
            await self._forget(
                erasure, done, batch, deleted, objects=objects, whole_span=whole_span
            )
        gone = [key for mark in done for key in list_objects_of(mark)]
        await record_failures(self._engine, self._blobs, erasure, faults, gone)

    async def _forget(
        self,
        erasure: Erasure,
        done: Sequence[PendingDeletion],
        batch: Batch,
        deleted: Deleted,
        *,
        objects: int,
        whole_span: bool,
    ) -> None:
        await failpoint_of_task("retention.row_delete.before")
        if not done:
            # the inferences wait for their other objects; the deleted ones are counted
            async with self._engine.begin() as connection:
                versions, size = deleted.versions, deleted.bytes
                await add_erased(connection, erasure.id, versions=versions, bytes=size)
            return
        async with self._engine.begin() as connection:
            await advance_erasure(connection, erasure.id, "deleting_rows")
        async with self._engine.begin() as connection:
            erased = await rows.delete_rows(
                connection,
                erasure,
                done,
                objects=objects,
                versions=deleted.versions,
                bytes=deleted.bytes,
                whole_span=whole_span,
            )
            await shared_metadata.repoint_rows(connection, done, batch.moves)
            key = None
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, erasure.id)
                doomed = batch.doomed
                await record_erased(connection, key, erasure, done, doomed, whole_span=whole_span)
            await record_in_exports(connection, key, erasure, done)
        failpoint("retention.row_delete.after")
        ERASED.labels(erasure.scope).inc(erased)
        OBJECTS_DELETED.inc(objects)
