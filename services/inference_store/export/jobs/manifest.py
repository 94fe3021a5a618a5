"""The manifest of an export: every part with its SHA-256. It is written last, and with it the job
is done."""

import asyncio
import json
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from . import members, state_changes
from .job import Confirm, ExportJob, describe_job, read_model_id
from .members import Part
from .object_keys import make_manifest_key

_PAGE: Final = 1000


async def finish_export(
    engine: AsyncEngine, blobs: Blobs, job: ExportJob, *, confirm: Confirm
) -> None:
    """Write the manifest, and end the job. A service that was frozen and leads no more ends no job
    whose parts an erasure has deleted since. Raises ObjectStoreUnavailable."""
    async with engine.connect() as connection:
        model_id = await read_model_id(connection, job)
        parts = await _list_written(connection, job)
    manifest = _make_manifest(job, model_id, parts)
    key = StorageKey(blobs.buckets.default, make_manifest_key(job.id))
    content = json.dumps(manifest, indent=2).encode()
    await confirm()
    failpoint("export.finish.before")
    await asyncio.to_thread(blobs.replace, key, content, content_type="application/json")
    failpoint("export.finish.after")
    async with engine.begin() as connection:
        await confirm()
        await state_changes.finish_job(connection, job.id)
    failpoint("export.finish.commit.after")


async def _list_written(connection: AsyncConnection, job: ExportJob) -> list[Part]:
    parts: list[Part] = []
    after = 0
    while page := await members.list_parts(connection, job.id, after=after, limit=_PAGE):
        parts += [part for part in page if part.state == "written"]
        after = page[-1].number
    return parts


def _make_manifest(job: ExportJob, model_id: str, parts: list[Part]) -> dict[str, Any]:
    """Return the manifest."""
    return {
        **describe_job(job, model_id),
        "rows": sum(part.rows or 0 for part in parts),
        "bytes": sum(part.bytes or 0 for part in parts),
        "missing": sum(part.missing for part in parts),
        "parts": [_show_part(part) for part in parts],
    }


def _show_part(part: Part) -> dict[str, Any]:
    assert part.storage_key is not None, "it is written"
    assert part.sha256 is not None, "it is written"
    return {
        "number": part.number,
        "key": parse_stored(part.storage_key).key,
        "rows": part.rows,
        "bytes": part.bytes,
        "sha256": part.sha256.hex(),
        "gone": part.gone,
        "missing": part.missing,
    }
