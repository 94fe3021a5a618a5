"""Deletes the parts of exports that name what an erasure erased. The order makes every crash
harmless:

1. record   (`export.erased`) with the rows of each batch: lists are without its uids, and parts
            that have an object are stale, so that nobody is given a link to them
2. delete   the objects of stale parts and the manifests that name them, in every version; write the
            lists in the bucket again without the uids
3. verify   by listing again that they are gone
4. forget   the keys of the objects

A crash before 4 leaves the keys, and the next run begins again at 2: deleting an object twice is no
error, and a list is written the same. If an object still exists (S3 has locked it), its key stays,
and the erasure fails: it gets no certificate.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress import Erasure
from inference_store.export.erased import FIRST_PART, TouchedPart, forget_objects, list_touched
from inference_store.export.parts import make_manifest_key, make_members_key
from inference_store.inference.errors import AccessDenied
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, DeleteFault
from inference_store.platform.failpoints import failpoint

from .batch_eraser import format_failures, merge_faults, record_failures
from .leadership_check import LeadershipCheck

# Lists in memory at once: 16 MB.
_PAGE = 100
_BYTES = "application/octet-stream"


class ExportEraser:
    """Deletes the copies of an erasure. Raises BlobsAway and the errors of the database."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, check: LeadershipCheck) -> None:
        self._engine = engine
        self._blobs = blobs
        self._check = check

    async def delete_copies(self, erasure: Erasure) -> str | None:
        """Delete what the erasure has recorded; return the first failures as a text. Repeatable."""
        after, failures = FIRST_PART, None
        while True:
            async with self._engine.connect() as connection:
                parts = await list_touched(connection, erasure.id, after=after, limit=_PAGE)
            if not parts:
                return failures
            await self._check.confirm_step()
            faults = await self._delete_page(erasure, parts)
            failures = failures or format_failures(faults)
            after = parts[-1].export, parts[-1].number

    async def _delete_page(
        self, erasure: Erasure, parts: Sequence[TouchedPart]
    ) -> list[DeleteFault]:
        """Delete the objects of these parts, and forget those that are gone; return the faults."""
        failpoint("retention.export_delete.before")
        faults = await asyncio.to_thread(self._delete_objects, parts)
        failpoint("retention.export_delete.after")
        remaining = {fault.key for fault in faults}
        gone = [part for part in parts if remaining.isdisjoint(self._list_objects_of(part))]
        async with self._engine.begin() as connection:
            await forget_objects(connection, gone)
        failpoint("retention.export_forget.after")
        keys = [key for part in gone for key in self._list_objects_of(part)]
        await record_failures(self._engine, self._blobs, erasure, faults, keys)
        return faults

    def _delete_objects(self, parts: Sequence[TouchedPart]) -> list[DeleteFault]:
        """Delete objects and write lists; return faults for what is there still. Blocks."""
        lists = {
            self._name(make_members_key(part.export, part.number)): part.uids for part in parts
        }
        doomed = {key for part in parts for key in self._list_objects_of(part)}
        keys = [key for key in doomed if not lists.get(key)]
        faults = [*self._blobs.delete_objects(keys)]
        for key, uids in lists.items():
            try:
                faults += self._blobs.replace(key, uids, content_type=_BYTES) if uids else ()
            except AccessDenied as error:
                faults.append(DeleteFault(key, "AccessDenied", str(error)))
        return merge_faults(faults, keys, self._blobs.still_there(keys))

    def _list_objects_of(self, part: TouchedPart) -> list[StorageKey]:
        """List every object that may have what was erased; if one is left, the part keeps its
        key."""
        keys = [self._find_list(part)]
        if part.storage_key is not None:
            keys += [parse_stored(part.storage_key), self._name(make_manifest_key(part.export))]
        return keys

    def _find_list(self, part: TouchedPart) -> StorageKey:
        return self._name(make_members_key(part.export, part.number))

    def _name(self, key: str) -> StorageKey:
        return StorageKey(self._blobs.buckets.default, key)
