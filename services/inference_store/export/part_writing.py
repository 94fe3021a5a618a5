"""Writes the parts of an export and its manifest, and deletes them in the end.

The order of writing makes every crash harmless:

1. clear    delete the object of an attempt that was cut off
2. name     record the new key, so that an erasure that comes now deletes the object
3. write    read the members that are still there, and put the object
4. commit   its size and SHA-256, unless an erasure took a member meanwhile

A crash after 2 leaves an object under the recorded key: the next attempt begins with 1.

A process that is frozen amid 3 may wake when another one leads, and has erased and certified what
the file holds. What it commits in 4 fails then, because Postgres no longer names its key, and it
deletes what it has put before it does anything else, also if it ends with an error. If it dies
before that, `delete_unnamed` of the new leader deletes it.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from functools import partial
from tempfile import TemporaryFile
from typing import Any, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export import jobs
from inference_store.export.jobs import Part
from inference_store.export.part_formats import CopyLimits, PartEncoding
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import EXPORTS
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.freed_memory import release_freed_memory

from .erased import is_downloaded
from .jobs import (
    Confirm,
    ExportJob,
    State,
    end_removed,
    finish_job,
    read_model_id,
    recount,
)
from .part_formats import PART_FORMATS

_REMOVED_PAGE: Final = 500
# what the store wrote: a folder that is named like an export
_OWN_KEY: Final = re.compile(f"{EXPORTS}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}/")
_log = structlog.get_logger()


async def write_part(
    engine: AsyncEngine,
    blobs: Blobs,
    job: ExportJob,
    part: Part,
    *,
    limits: CopyLimits,
    confirm: Confirm,
) -> int:
    """Write a part, and return its bytes; 0 if no member is left, or an erasure came meanwhile.
    `limits`: of the blobs that it copies; `confirm` raises if the service may not go on.

    Raises ObjectStoreUnavailable, OSError if the disk is full, and the errors of the database.
    """
    failpoint("export.write.before")
    part = await _clear(engine, blobs, part)
    async with engine.connect() as connection:
        uids = await jobs.read_members(connection, part.export, part.number)
    if not uids:
        async with engine.begin() as connection:
            await jobs.end_empty(connection, part)
            await recount(connection, part.export)
        return 0
    format = PART_FORMATS[job.format]
    name = jobs.make_part_key(part.export, part.number, format.suffix)
    key = StorageKey(blobs.buckets.default, name)
    async with engine.begin() as connection:
        if not await jobs.begin_part(connection, part, str(key)):
            return 0
    part = part.model_copy(update={"state": "writing", "storage_key": str(key)})
    failpoint("export.write.named")
    is_written = False
    try:
        with TemporaryFile(prefix="inference-store-export-") as file:
            encoded = await PartEncoding(engine, blobs, job, limits, confirm).encode(uids, file)
            size, sha256 = await asyncio.to_thread(_digest, file)
            async with engine.connect() as connection:
                if not await jobs.is_current(connection, part):
                    return 0
            await asyncio.to_thread(blobs.put_file, key, file, content_type=format.media_type)
        await asyncio.to_thread(release_freed_memory)
        failpoint("export.write.after")
        async with engine.begin() as connection:
            # whether the commit succeeds or not: Postgres names the key until an erasure deletes it
            is_written = await jobs.end_part(
                connection,
                part,
                rows=encoded.rows,
                bytes=size,
                sha256=sha256,
                gone=len(uids) - encoded.rows,
                missing=encoded.missing,
            )
            await recount(connection, job.id)
    finally:
        if not is_written:
            await asyncio.to_thread(_delete_unwritten, blobs, key)
    failpoint("export.write.commit.after")
    return size if is_written else 0


def _delete_unwritten(blobs: Blobs, key: StorageKey) -> None:
    """Delete what was put and is not written, in every version. Blocks."""
    try:
        faults = [fault.message for fault in blobs.delete_objects([key])]
    except ObjectStoreUnavailable as error:  # nor does it hide the error that led here
        faults = [str(error)]
    if faults:
        _log.error("a part stays", action="export_part_stays", key=str(key), error=faults[0])


async def _clear(engine: AsyncEngine, blobs: Blobs, part: Part) -> Part:
    """Delete the object of an attempt that was cut off. Raises ObjectStoreUnavailable."""
    if part.storage_key is None:
        return part
    await _delete(blobs, parse_stored(part.storage_key))
    async with engine.begin() as connection:
        await jobs.begin_part(connection, part, None)
    return part.model_copy(update={"state": "listed", "storage_key": None})


async def _delete(blobs: Blobs, key: StorageKey) -> None:
    faults = await asyncio.to_thread(blobs.delete_objects, [key])
    if faults:
        raise ObjectStoreUnavailable(f"{key} cannot be deleted: {faults[0].message}")


def _digest(file: Any) -> tuple[int, bytes]:
    """Return the size and the SHA-256 of a file, and go back to its begin."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()
    size = file.tell()
    file.seek(0)
    return size, digest


async def finish_export(
    engine: AsyncEngine, blobs: Blobs, job: ExportJob, *, confirm: Confirm
) -> State:
    """Write the manifest, and end the job; return how. Raises ObjectStoreUnavailable.

    An export of which an erasure deleted a part has no manifest; one that was written before a
    crash goes. A service that was frozen and leads no more ends no job.
    """
    async with engine.connect() as connection:
        model_id = await read_model_id(connection, job)
        every_part = await jobs.list_parts(connection, job.id)
    key = StorageKey(blobs.buckets.default, jobs.make_manifest_key(job.id))
    await confirm()
    failpoint("export.finish.before")
    if any(part.state == "stale" for part in every_part):
        await _delete(blobs, key)
    else:
        manifest = _make_manifest(job, model_id, every_part)
        content = json.dumps(manifest, indent=2).encode()
        await asyncio.to_thread(blobs.replace, key, content, content_type="application/json")
    failpoint("export.finish.after")
    async with engine.begin() as connection:
        await confirm()
        state = await finish_job(connection, job.id)
    failpoint("export.finish.commit.after")
    return state


def _make_manifest(job: ExportJob, model_id: str, every_part: list[Part]) -> dict[str, Any]:
    # without its filter, which may hold a value that is erased
    parts: list[dict[str, Any]] = []
    for part in every_part:
        if part.state == "written":
            assert part.storage_key is not None, "it is written"
            assert part.sha256 is not None, "it is written"
            shown = {"number": part.number, "key": parse_stored(part.storage_key).key}
            shown |= {"rows": part.rows, "bytes": part.bytes, "sha256": part.sha256.hex()}
            parts.append(shown | {"gone": part.gone, "missing": part.missing})
    return {
        "export": str(job.id),
        "model_id": model_id,
        "format": job.format,
        "include": job.document["include"],
        "blobs": job.blob_choice,
        "requested_by": job.requested_by,
        "requested_at": job.requested_at.isoformat(),
        "expires_at": job.expires_at.isoformat(),
        **{name: sum(part[name] or 0 for part in parts) for name in ("rows", "bytes", "missing")},
        "parts": parts,
    }


# An export that expired or was cancelled. First every object under its prefix goes, in every
# version, until none is listed; then the state is committed, and that no part has an object. The
# lists of members stay in Postgres if anybody was given a link: an erasure has to find what was
# copied. They go with the job.


async def remove_export(engine: AsyncEngine, blobs: Blobs, job: ExportJob) -> None:
    """Delete an export's objects, and record it. Raises ObjectStoreUnavailable."""
    failpoint("export.remove.before")
    await asyncio.to_thread(_delete_objects, blobs, jobs.make_prefix(job.id))
    failpoint("export.remove.after")
    state: State = "cancelled" if job.state == "cancelling" else "expired"
    async with engine.begin() as connection:
        keep_lists = await is_downloaded(connection, job.id)
        await jobs.remove_parts(connection, job.id, keep_lists=keep_lists)
        await end_removed(connection, job.id, state)
    failpoint("export.remove.commit.after")


async def delete_forgotten(engine: AsyncEngine, blobs: Blobs, confirm: Confirm) -> None:
    """Delete the objects of exports that Postgres does not name, because it was restored from an
    older backup: no erasure would find them. Raises ObjectStoreUnavailable."""
    bucket, after = blobs.buckets.default, ""
    pages = partial(blobs.page, bucket, EXPORTS, limit=_REMOVED_PAGE)
    while page := await asyncio.to_thread(pages, after=after):
        await confirm()
        after = page[-1].place.key
        keys = [item.place for item in page if _OWN_KEY.match(item.place.key)]
        await delete_unnamed(engine, blobs, keys)


async def delete_unnamed(engine: AsyncEngine, blobs: Blobs, keys: Sequence[StorageKey]) -> None:
    """Delete those of the objects that no export names any more, in every version; an erasure finds
    the others. Raises ObjectStoreUnavailable."""
    async with engine.connect() as connection:
        named = await jobs.find_named(connection, keys)
    unnamed = [key for key in keys if key not in named]
    present = await asyncio.to_thread(blobs.still_there, unnamed) if unnamed else []
    if present:
        faults = await asyncio.to_thread(blobs.delete_objects, present)
        about = {"keys": [str(key) for key in present], "faults": [f.message for f in faults]}
        _log.warning("deleted what no part names", action="export_objects_deleted", **about)


def _delete_objects(blobs: Blobs, prefix: str) -> None:
    """Delete all objects under a prefix, and those of which only older versions are left."""
    bucket = blobs.buckets.default
    while page := blobs.page(bucket, prefix, after="", limit=_REMOVED_PAGE):
        keys = [item.place for item in page]
        faults = blobs.delete_objects(keys)
        if faults:
            raise ObjectStoreUnavailable(f"{faults[0].key} stays: {faults[0].message}")
