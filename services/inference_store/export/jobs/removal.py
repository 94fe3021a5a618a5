"""Deletes the objects of an export that expired or was cancelled. The order makes every crash
harmless:

1. delete   every object under the export's prefix, in every version, until none is listed
2. commit   the state, and that no part has an object

The lists of members stay in Postgres if anybody was given a link: an erasure has to find what was
copied. They go with the job.
"""

import asyncio
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from . import downloads, members, state_changes
from .job import ExportJob, State
from .object_keys import make_prefix

_PAGE: Final = 500


async def remove_export(engine: AsyncEngine, blobs: Blobs, job: ExportJob) -> None:
    """Delete an export's objects, and record it. Raises ObjectStoreUnavailable."""
    failpoint("export.remove.before")
    await asyncio.to_thread(_delete_objects, blobs, make_prefix(job.id))
    failpoint("export.remove.after")
    state: State = "cancelled" if job.state == "cancelling" else "expired"
    async with engine.begin() as connection:
        keep_lists = await downloads.is_downloaded(connection, job.id)
        await members.remove_parts(connection, job.id, keep_lists=keep_lists)
        await state_changes.end_removed(connection, job.id, state)
    failpoint("export.remove.commit.after")


def _delete_objects(blobs: Blobs, prefix: str) -> None:
    """Delete all objects under a prefix, and those of which only older versions are left."""
    bucket = blobs.buckets.default
    while page := blobs.page(bucket, prefix, after="", limit=_PAGE):
        keys = [item.place for item in page]
        faults = blobs.delete_objects(keys)
        if faults:
            raise ObjectStoreUnavailable(f"{faults[0].key} stays: {faults[0].message}")
