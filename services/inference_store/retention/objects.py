"""Lists the objects of a batch, deletes them, and verifies that they are gone."""

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.progress.state_changes import advance_erasure
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, Deleted, DeleteFault, Listed
from inference_store.platform.failpoints import failpoint, failpoint_of_task
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.stages import stage

from .batch import Batch
from .erasure_failures import merge_faults
from .requests import remove_requests


async def list_objects(blobs: Blobs, batch: Batch) -> Listed:
    """List the versions to delete, in buckets that are versioned."""
    keys = _list_keys(batch)
    return await asyncio.to_thread(blobs.list_versions, keys) if keys else {}


async def erase_objects(
    engine: AsyncEngine, blobs: Blobs, erasure: Erasure, batch: Batch, listed: Listed
) -> tuple[Deleted, list[DeleteFault]]:
    """Delete the objects and verify it; return the deleted ones, and faults for the others."""
    keys = _list_keys(batch)
    if not keys and erasure.scope != "input":
        return Deleted(), []
    failpoint("retention.object_delete.before")
    with stage(STEP_SECONDS, "delete"):
        deleted = await asyncio.to_thread(blobs.delete_objects, keys, listed)
        if erasure.scope == "input":
            deleted += await asyncio.to_thread(remove_requests, blobs, batch.page, batch.moves)
    failpoint("retention.object_delete.after")
    async with engine.begin() as connection:
        await advance_erasure(connection, erasure.id, "verifying")
    await failpoint_of_task("retention.verify.before")
    with stage(STEP_SECONDS, "verify"):
        remaining = await asyncio.to_thread(blobs.still_there, keys)
    failpoint("retention.verify.after")
    return deleted, merge_faults(deleted, keys, remaining)


def _list_keys(batch: Batch) -> list[StorageKey]:
    return [parse_stored(key) for key in sorted(batch.doomed)]
