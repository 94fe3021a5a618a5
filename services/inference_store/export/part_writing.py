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
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final
from uuid import UUID

import structlog
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export import jobs
from inference_store.index.tables import export_part
from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import EXPORTS
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform.failpoints import failpoint
from inference_store.platform.freed_memory import release_freed_memory
from inference_store.query.deadline import Deadline, find_ranges
from inference_store.query.lookup import read_visible
from inference_store.query.pages import find_matched
from inference_store.query.plan import Hit
from inference_store.query.read import PREDICTIONS, STORAGE_KEYS, get_storage_key

from .columns import ChosenBlobs, Columns, Row, link_blobs
from .erased import is_downloaded
from .jobs import (
    Confirm,
    ExportJob,
    Part,
    State,
    finish_job,
    read_model_id,
    recount,
)
from .listing import build_question
from .part_formats import PART_FORMATS, CopyLimits, measure_contents

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
            await jobs.change_part(connection, part, "removed", storage_key=None)
            await recount(connection, part.export)
        return 0
    format = PART_FORMATS[job.format]
    name = jobs.make_part_key(part.export, part.number, format.suffix)
    key = StorageKey(blobs.buckets.default, name)
    async with engine.begin() as connection:
        # before the object is written, so that the erasure of a member deletes it
        if not await jobs.change_part(connection, part, "writing", storage_key=str(key)):
            return 0
    part = part.model_copy(update={"state": "writing", "storage_key": str(key)})
    failpoint("export.write.named")
    is_written = False
    try:
        with TemporaryFile(prefix="inference-store-export-") as file:
            rows, missing = await _encode_part(engine, blobs, job, uids, file, limits, confirm)
            size, sha256 = await asyncio.to_thread(_digest, file)
            async with engine.connect() as connection:
                if not await jobs.is_current(connection, part):
                    return 0
            await asyncio.to_thread(blobs.put_file, key, file, content_type=format.media_type)
        await asyncio.to_thread(release_freed_memory)
        failpoint("export.write.after")
        async with engine.begin() as connection:
            # whether the commit succeeds or not: Postgres names the key until an erasure deletes it
            is_written = await jobs.change_part(
                connection,
                part,
                "written",
                written_at=func.now(),
                rows=rows,
                bytes=size,
                sha256=sha256,
                gone=export_part.c.gone + len(uids) - rows,
                missing=missing,
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
        await jobs.change_part(connection, part, "listed", storage_key=None)
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


# What is in a part of an export: its members as rows, with links to their blobs or their bytes.
#
# They depend on nothing but what is stored, so that an attempt after a crash has the same bytes. A
# blob that is missing is None, and never an error: it was erased, it is not in the bucket, or it is
# too large. If the bucket is unavailable, the part waits.

_PAGE: Final = 500
"""Members that are read at once, which bounds the memory."""
_BATCH_ROWS: Final = 100
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a batch, unless a single row has more."""
_THREADS: Final = 4
"""Requests at once; each may be for a blob more than the batch has room for."""
_SURPLUS: Final = 2
"""A part has at most so many times the bytes that its list was closed for, which producers name."""
_MATCH_SECONDS: Final = 30.0
_LONGEST_LINK: Final = timedelta(days=7)
"""The longest that a link of AWS Signature Version 4 works."""


async def _encode_part(  # noqa: PLR0917
    engine: AsyncEngine,
    blobs: Blobs,
    job: ExportJob,
    uids: Sequence[UUID],
    file: BinaryIO,
    limits: CopyLimits,
    confirm: Confirm,
) -> tuple[int, int]:
    """Encode the members that are still there. Return how many these are, and how many blobs the
    part should have and does not. `confirm`, before each batch, raises if the service may not go
    on. Raises ObjectStoreUnavailable, OutOfTime, OSError if the disk is full, and the errors of the
    database."""
    format = PART_FORMATS[job.format]
    chosen = format.choose_blobs(job.blob_choice)
    columns = Columns.of(job.document["include"], job.document["keys"], chosen)
    encoder = format.make_encoder(columns, file)
    copies = CopySource(blobs, chosen.copied, limits)
    count = missing = 0
    for begin in range(0, len(uids), _PAGE):
        rows = await _read_rows(engine, job, uids[begin : begin + _PAGE])
        links = _add_links(blobs, job, chosen.linked, rows)
        batches = copies.complete(rows) if chosen.copied else links
        while batch := await asyncio.to_thread(next, batches, ()):
            await confirm()
            await asyncio.to_thread(encoder.add, batch)
            missing += sum(_count_missing(row, chosen) for row in batch)
            failpoint("export.write.batch")
        count += len(rows)
    await asyncio.to_thread(encoder.close)
    return count, missing


async def _read_rows(engine: AsyncEngine, job: ExportJob, uids: Sequence[UUID]) -> list[Row]:
    """Read the members that are still there; their predictions say which of them match."""
    include = job.document["include"]
    async with engine.connect() as connection:
        spans = await find_ranges(connection)
        model_id = await read_model_id(connection, job)
        found = await read_visible(connection, job.model, uids, spans, include=include)
        matched = None
        if found and PREDICTIONS in include and job.document["saved"] is not None:
            query = await build_question(connection, job.model, job.document)
            there = [Hit(job.model, one.uid) for one in found]
            matched = await find_matched(connection, query, there, Deadline.after(_MATCH_SECONDS))
    return [Row(model_id, one.mark(matched)) for one in found]


def _count_missing(row: Row, chosen: ChosenBlobs) -> int:
    """Return how many blobs the inference names and the part has not."""
    present = {**(row.urls or {}), **(row.contents or {})}
    blobs = (*chosen.linked, *chosen.copied)
    named = [blob for blob in blobs if row.inference.row[STORAGE_KEYS[blob]] is not None]
    return sum(present[blob] is None for blob in named)


def _add_links(
    blobs: Blobs, job: ExportJob, linked: Sequence[str], rows: Sequence[Row]
) -> Iterator[Sequence[Row]]:
    """Add links, if any are linked. They are signed as of the request, so that all links
    of an export end at once: with the export, or after the seven days that signatures have."""
    lasting = min(job.expires_at - job.requested_at, _LONGEST_LINK)
    seconds = max(1, int(lasting.total_seconds()))

    def link(row: Row) -> Row:
        at = job.requested_at
        return row._replace(
            urls=link_blobs(blobs, row.model_id, row.inference, linked, seconds, at)
        )

    yield [link(row) for row in rows] if linked else rows


class CopySource:
    """Adds the bytes of blobs to the rows of one part."""

    def __init__(self, blobs: Blobs, copied: Sequence[str], limits: CopyLimits) -> None:
        self._blobs, self._copied, self._most = blobs, copied, limits.blob
        self._left = max(_SURPLUS * limits.part, limits.part + len(copied) * limits.blob)

    def complete(self, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """Yield the rows with their blobs, in batches that depend on nothing but the blobs: so a
        part that is written again has the same bytes. Raises ObjectStoreUnavailable. Blocks."""
        batch: list[Row] = []
        size = 0
        while rows:
            some = self._read_some(rows[:_BATCH_ROWS])
            rows = rows[len(some) :]
            for bare, results in some:
                row = bare._replace(contents=self._take(results))
                row_size = measure_contents(row)
                if batch and (size + row_size > _BATCH_BYTES or len(batch) == _BATCH_ROWS):
                    yield batch
                    batch, size = [], 0
                batch.append(row)
                size += row_size
        if batch:
            yield batch

    def _read_some(self, rows: Sequence[Row]) -> list[tuple[Row, Sequence[Fetched]]]:
        """Read the blobs of the first rows, of as many as a batch has bytes for; of one at
        least."""
        width = len(self._copied)
        keys = [self._find_key(row, blob) for row in rows for blob in self._copied]
        budget = _BATCH_BYTES if len(rows) > 1 else None
        results = self._blobs.get_many(keys, limit=self._most, threads=_THREADS, budget=budget)
        whole = results.index(OVER_BUDGET) // width if OVER_BUDGET in results else len(rows)
        if whole == 0:
            return self._read_some(rows[:1])
        each = (results[at : at + width] for at in range(0, whole * width, width))
        return [*zip(rows, each, strict=False)]

    def _find_key(self, row: Row, blob: str) -> StorageKey | None:
        """Return the key to read; None: the blob is gone, or its bucket no longer allowed."""
        text = get_storage_key(row.inference, blob)
        key = None if text is None else parse_stored(text)
        return key if key is not None and key.bucket in self._blobs.buckets.allowed else None

    def _take(self, results: Sequence[Fetched]) -> Mapping[str, bytes | None]:
        """Return the bytes of a row's blobs, as long as the part has room for them."""
        contents: dict[str, bytes | None] = {}
        for blob, result in zip(self._copied, results, strict=True):
            fits = isinstance(result, bytes) and len(result) <= self._left
            contents[blob] = result if isinstance(result, bytes) and fits else None
            self._left -= len(contents[blob] or b"")
        return contents


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
        await jobs.move_job(connection, job.id, state)
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
