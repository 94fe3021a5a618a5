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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from tempfile import TemporaryFile
from typing import BinaryIO, Final, NamedTuple, Protocol
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.blob_choices import ChosenBlobs
from inference_store.export.columns import Columns
from inference_store.export.fixed_columns import Row
from inference_store.export.part_formats import PART_FORMATS, PartEncoder
from inference_store.index import key_registry
from inference_store.index.key_registry import KeySeen
from inference_store.inference.errors import BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.freed_memory import release_freed_memory
from inference_store.query.lookup import read_visible
from inference_store.query.read import STORAGE_KEYS, get_storage_key
from inference_store.query.scan_range import find_ranges

from . import members, state_changes
from .blob_copies import CopyLimits, CopySource
from .job import Confirm, ExportJob, read_model_id
from .members import Part
from .object_keys import make_part_key
from .saved_keys import load_keys, save_keys

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


_PAGE: Final = 500
"""Members that are read at once, which bounds the memory."""


class Encoded(NamedTuple):
    """How many inferences a part has, and how many blobs it should have and does not."""

    rows: int
    missing: int


class _Source(Protocol):
    """Adds to rows what a part has of their blobs."""

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows in batches."""


class _NoBlobs:
    """Adds nothing."""

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows as they are."""
        yield rows


@dataclass(frozen=True, slots=True)
class PartEncoding:
    """Encodes one part of a job."""

    engine: AsyncEngine
    blobs: Blobs
    job: ExportJob
    limits: CopyLimits
    confirm: Confirm

    async def encode(self, uids: Sequence[UUID], file: BinaryIO) -> Encoded:
        """Encode the members that are still there; `confirm`, before each batch, raises if the
        service may not go on. Raises ObjectStoreUnavailable, OSError if the disk is full, and the
        errors of the database."""
        format = PART_FORMATS[self.job.format]
        chosen = format.choose_blobs(self.job.blobs)
        columns = Columns.of(self.job.document["include"], await self._find_keys(), chosen)
        encoder: PartEncoder = format.make_encoder(columns, file)
        source = self._make_source(chosen)
        count = missing = 0
        for begin in range(0, len(uids), _PAGE):
            rows = await self._read_rows(uids[begin : begin + _PAGE])
            batches = source.complete(rows)
            while batch := await asyncio.to_thread(next, batches, ()):
                await self.confirm()
                await asyncio.to_thread(encoder.add, batch)
                missing += sum(_count_missing(row, chosen) for row in batch)
                failpoint("export.write.batch")
            count += len(rows)
        await asyncio.to_thread(encoder.close)
        return Encoded(count, missing)

    def _make_source(self, chosen: ChosenBlobs) -> _Source:
        if chosen.copied:
            return CopySource(self.blobs, chosen.copied, self.limits)
        return LinkSource(self.blobs, self.job, chosen.linked) if chosen.linked else _NoBlobs()

    async def _find_keys(self) -> list[KeySeen]:
        """Return the keys of the columns; of an export that was restored, those of the first part
        that is written again."""
        if self.job.document["keys"] is not None:
            return load_keys(self.job.document["keys"])
        async with self.engine.begin() as connection:
            keys = await key_registry.keys(connection, self.job.model)
            await state_changes.set_keys(connection, self.job, save_keys(keys))
        return list(keys)

    async def _read_rows(self, uids: Sequence[UUID]) -> list[Row]:
        job = self.job
        async with self.engine.connect() as connection:
            spans = await find_ranges(connection)
            model_id = await read_model_id(connection, job)
            inferences = await read_visible(
                connection, job.model, uids, spans, include=job.document["include"]
            )
        return [Row(model_id, inference) for inference in inferences]


def _count_missing(row: Row, chosen: ChosenBlobs) -> int:
    """Return how many blobs the inference names and the part has not."""
    present = {**(row.urls or {}), **(row.contents or {})}
    blobs = (*chosen.linked, *chosen.copied)
    named = [blob for blob in blobs if row.inference.row[STORAGE_KEYS[blob]] is not None]
    return sum(present[blob] is None for blob in named)


# Presigned links in the parts of an export.
#
# They are signed as of the request, so that a part that is written again has the same bytes, and
# all links of an export end at once: with the export, or after the seven days that signatures have.

MOST: Final = timedelta(days=7)
"""The longest that a link of AWS Signature Version 4 works."""


class LinkSource:
    """Adds links to rows."""

    def __init__(self, blobs: Blobs, job: ExportJob, linked: Sequence[str]) -> None:
        self._blobs, self._linked, self._at = blobs, linked, job.requested_at
        self._seconds = max(1, int(min(job.expires_at - job.requested_at, MOST).total_seconds()))

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows with their links. Blocks."""
        yield [
            row._replace(urls={blob: self._sign(row, blob) for blob in self._linked})
            for row in rows
        ]

    def _sign(self, row: Row, blob: str) -> str | None:
        key = get_storage_key(row.inference, blob)
        if key is None:
            return None
        try:
            return self._blobs.presign(parse_stored(key), self._seconds, at=self._at)
        except BlobMissing:  # a key that no client can address, or a bucket no longer allowed
            return None
