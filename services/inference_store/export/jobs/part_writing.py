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
from collections.abc import Sequence
from dataclasses import replace
from io import BufferedRandom
from tempfile import TemporaryFile
from typing import BinaryIO, Final
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.columns import Columns
from inference_store.export.fixed_columns import Row
from inference_store.export.part_formats import PART_FORMATS, PartEncoder
from inference_store.index import key_registry
from inference_store.index.key_registry import KeySeen
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.freed_memory import release_freed_memory
from inference_store.query.scan_range import find_ranges
from inference_store.query.visible import read_visible

from . import members, state_changes
from .job import ExportJob, read_model_id
from .members import Part
from .object_keys import make_part_key
from .saved_keys import load_keys, save_keys

_PAGE: Final = 500
"""Members that are read at once, which bounds the memory."""
_READ_BYTES: Final = 1_048_576
_log = structlog.get_logger()


async def write_part(engine: AsyncEngine, blobs: Blobs, job: ExportJob, part: Part) -> int:
    """Write a part, and return its bytes; 0 if no member is left, or an erasure came meanwhile.

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
            rows = await _encode(engine, job, uids, file)
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
                connection, part, rows=rows, bytes=size, sha256=sha256, gone=len(uids) - rows
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


async def _encode(
    engine: AsyncEngine, job: ExportJob, uids: Sequence[UUID], file: BinaryIO | BufferedRandom
) -> int:
    """Write the members that are still there into a file, and return how many."""
    include = job.document["include"]
    columns = Columns.of(include, await _find_keys(engine, job))
    encoder: PartEncoder = PART_FORMATS[job.format].make_encoder(columns, file)
    count = 0
    for begin in range(0, len(uids), _PAGE):
        rows = await _read_rows(engine, job, uids[begin : begin + _PAGE])
        await asyncio.to_thread(encoder.add, rows)
        count += len(rows)
    await asyncio.to_thread(encoder.close)
    return count


async def _find_keys(engine: AsyncEngine, job: ExportJob) -> list[KeySeen]:
    """Return the keys of the columns; of an export that was restored, those of the first part
    that is written again."""
    if job.document["keys"] is not None:
        return load_keys(job.document["keys"])
    async with engine.begin() as connection:
        keys = await key_registry.keys(connection, job.model)
        await state_changes.set_keys(connection, job, save_keys(keys))
    return list(keys)


async def _read_rows(engine: AsyncEngine, job: ExportJob, uids: Sequence[UUID]) -> list[Row]:
    async with engine.connect() as connection:
        spans = await find_ranges(connection)
        model_id = await read_model_id(connection, job)
        inferences = await read_visible(
            connection, job.model, uids, spans, include=job.document["include"]
        )
    return [Row(model_id, inference) for inference in inferences]


def _digest(file: BinaryIO) -> tuple[int, bytes]:
    """Return the size and the SHA-256 of a file, and go back to its begin."""
    sha256, size = hashlib.sha256(), 0
    file.seek(0)
    while piece := file.read(_READ_BYTES):
        sha256.update(piece)
        size += len(piece)
    file.seek(0)
    return size, sha256.digest()
