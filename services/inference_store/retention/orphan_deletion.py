"""Deletes orphans, verifies that they are gone, and removes their names."""

import asyncio
from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.certify.erased_lists import record_batch
from inference_store.erasure.delete.orphan_objects import remove_orphans
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import add_erased, advance_erasure
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, DeleteFault
from inference_store.operations.reconcile import orphans
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import ERASED, OBJECTS_DELETED, STEP_SECONDS
from inference_store.platform.stages import stage

from .certifier import Certifier
from .erasure_failures import merge_faults, record_failures
from .orphan_report import parse_report


class OrphanDeletion:
    """Deletes batches of orphans. Raises BlobsAway and the errors of the database."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, certifier: Certifier | None) -> None:
        self._engine = engine
        self._blobs = blobs
        self._certifier = certifier

    async def delete(
        self, erasure: Erasure, keys: Sequence[StorageKey]
    ) -> tuple[Deleted, list[DeleteFault]]:
        """Delete every version, and verify it; return the deleted objects, and faults."""
        failpoint("retention.object_delete.before")
        with stage(STEP_SECONDS, "delete"):
            deleted = await asyncio.to_thread(self._blobs.delete_objects, keys)
        failpoint("retention.object_delete.after")
        async with self._engine.begin() as connection:
            await advance_erasure(connection, erasure.id, "verifying")
        with stage(STEP_SECONDS, "verify"):
            remaining = await asyncio.to_thread(self._blobs.still_there, keys)
        return deleted, merge_faults(deleted, keys, remaining)

    async def forget(
        self,
        erasure: Erasure,
        sizes: Mapping[StorageKey, int],
        deleted: Deleted,
        faults: Sequence[DeleteFault],
    ) -> None:
        """Remove the names of deleted orphans, and store the faults of the others."""
        blocked = {fault.key for fault in faults}
        gone = {key: size for key, size in sizes.items() if key not in blocked}
        failpoint("orphans.forget.before")
        with stage(STEP_SECONDS, "forget"):
            await self._forget(erasure, gone, deleted)
            await record_failures(self._engine, self._blobs, erasure, faults, list(gone))
        failpoint("orphans.forget.after")

    async def _forget(
        self,
        erasure: Erasure,
        gone: Mapping[StorageKey, int],
        deleted: Deleted,
    ) -> None:
        if not gone:
            return
        keys = [str(key) for key in gone]
        size = deleted.bytes or sum(gone.values())
        async with self._engine.begin() as connection:
            await remove_orphans(connection, keys)
            await orphans.record_state(connection, parse_report(erasure), keys, "erased")
            await add_erased(
                connection, erasure.id, objects=len(keys), versions=deleted.versions, bytes=size
            )
            if self._certifier is not None:
                key = await self._certifier.key_of(connection, erasure.id)
                scope = erasure.scope
                await record_batch(
                    connection, key, erasure.id, scope=scope, uids=(), objects=list(gone)
                )
        OBJECTS_DELETED.inc(len(keys))
        ERASED.labels(erasure.scope).inc(len(keys))
