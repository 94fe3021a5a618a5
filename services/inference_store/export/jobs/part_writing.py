"""Writes one part of an export. The order makes every crash harmless:

1. clear    delete the object of an attempt that was cut off
2. name     record the new key, so that an erasure that comes now deletes the object
3. write    read the members that are still there, and put the object
4. commit   its size and SHA-256, unless an erasure took a member meanwhile

A crash after 2 leaves an object under the recorded key: the next attempt begins with 1.

A process that is frozen amid 3 may wake when another one leads, and has erased and certified what
the file holds. What it commits in 4 fails then, because Postgres no longer names its key, and it
deletes what it has put before it does anything else, also if it ends with an error. If it dies
before that, `TakenOverParts` of the new leader deletes it.
"""

import asyncio
import hashlib
from dataclasses import replace
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.freed_memory import release_freed_memory

from . import members, state_changes
from .blob_copies import CopyLimits
from .job import Confirm, ExportJob
from .members import Part
from .object_keys import make_part_key
from .part_encoding import PartEncoding

_READ_BYTES: Final = 1_048_576
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
        uids = await members.read_members(connection, part.export, part.number)
    if not uids:
        await _end_empty(engine, part)
        return 0
    format = PART_FORMATS[job.format]
    name = make_part_key(part.export, part.number, format.suffix)
    key = StorageKey(blobs.buckets.default, name)
    async with engine.begin() as connection:
        if not await members.begin_part(connection, part, str(key)):
            return 0
    part = replace(part, state="writing", storage_key=str(key))
    failpoint("export.write.named")
    is_written = False
    try:
        with TemporaryFile(prefix="inference-store-export-") as file:
            encoded = await PartEncoding(engine, blobs, job, limits, confirm).encode(uids, file)
            size, sha256 = await asyncio.to_thread(_digest, file)
            async with engine.connect() as connection:
                if not await members.is_current(connection, part):
                    return 0
            await asyncio.to_thread(blobs.put_file, key, file, content_type=format.media_type)
        await asyncio.to_thread(release_freed_memory)
        failpoint("export.write.after")
        async with engine.begin() as connection:
            # whether the commit succeeds or not: Postgres names the key until an erasure deletes it
            is_written = await members.end_part(
                connection,
                part,
                rows=encoded.rows,
                bytes=size,
                sha256=sha256,
                gone=len(uids) - encoded.rows,
                missing=encoded.missing,
            )
            await state_changes.recount(connection, job.id)
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


async def _end_empty(engine: AsyncEngine, part: Part) -> None:
    """Record that no member is left, and so there is nothing to write."""
    async with engine.begin() as connection:
        await members.end_empty(connection, part)
        await state_changes.recount(connection, part.export)


async def _clear(engine: AsyncEngine, blobs: Blobs, part: Part) -> Part:
    """Delete the object of an attempt that was cut off. Raises ObjectStoreUnavailable."""
    if part.storage_key is None:
        return part
    faults = await asyncio.to_thread(blobs.delete_objects, [parse_stored(part.storage_key)])
    if faults:
        raise ObjectStoreUnavailable(f"{part.storage_key} cannot be deleted: {faults[0].message}")
    async with engine.begin() as connection:
        await members.begin_part(connection, part, None)
    return replace(part, state="listed", storage_key=None)


def _digest(file: BinaryIO) -> tuple[int, bytes]:
    """Return the size and the SHA-256 of a file, and go back to its begin."""
    sha256, size = hashlib.sha256(), 0
    file.seek(0)
    while piece := file.read(_READ_BYTES):
        sha256.update(piece)
        size += len(piece)
    file.seek(0)
    return size, sha256.digest()
