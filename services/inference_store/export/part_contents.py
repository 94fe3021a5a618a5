"""What is in a part of an export: its members as rows, with links to their blobs or their bytes.

They depend on nothing but what is stored, so that an attempt after a crash has the same bytes. A
blob that is missing is None, and never an error: it was erased, it is not in the bucket, or it is
too large. If the bucket is unavailable, the part waits.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import BinaryIO, Final, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import OVER_BUDGET, Blobs, Fetched
from inference_store.platform.failpoints import failpoint
from inference_store.query.lookup import read_visible
from inference_store.query.read import STORAGE_KEYS, get_storage_key
from inference_store.query.scan_range import find_ranges

from .columns import ChosenBlobs, Columns, Row
from .jobs import Confirm, ExportJob, load_keys, read_model_id
from .part_formats import PART_FORMATS, PartEncoder

_PAGE: Final = 500
"""Members that are read at once, which bounds the memory."""
_BATCH_ROWS: Final = 100
_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes of a batch, unless a single row has more."""
_THREADS: Final = 4
"""Requests at once; each may be for a blob more than the batch has room for."""
_SURPLUS: Final = 2
"""A part has at most so many times the bytes that its list was closed for, which producers name."""
_LONGEST_LINK: Final = timedelta(days=7)
"""The longest that a link of AWS Signature Version 4 works."""


class CopyLimits(NamedTuple):
    """Most bytes of one blob that is copied, and of the blobs that a list is closed for."""

    blob: int
    part: int


class Encoded(NamedTuple):
    """How many inferences a part has, and how many blobs it should have and does not."""

    rows: int
    missing: int


Complete: TypeAlias = Callable[[Sequence[Row]], Iterator[Sequence[Row]]]
"""Adds to rows what a part has of their blobs, and yields them in batches. Blocks."""


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
        document = self.job.document
        columns = Columns.of(document["include"], load_keys(document["keys"]), chosen)
        encoder: PartEncoder = format.make_encoder(columns, file)
        complete = self._choose_source(chosen)
        count = missing = 0
        for begin in range(0, len(uids), _PAGE):
            rows = await self._read_rows(uids[begin : begin + _PAGE])
            batches = complete(rows)
            while batch := await asyncio.to_thread(next, batches, ()):
                await self.confirm()
                await asyncio.to_thread(encoder.add, batch)
                missing += sum(_count_missing(row, chosen) for row in batch)
                failpoint("export.write.batch")
            count += len(rows)
        await asyncio.to_thread(encoder.close)
        return Encoded(count, missing)

    def _choose_source(self, chosen: ChosenBlobs) -> Complete:
        if chosen.copied:
            return CopySource(self.blobs, chosen.copied, self.limits).complete
        if chosen.linked:
            return partial(_add_links, self.blobs, self.job, chosen.linked)
        return lambda rows: iter((rows,))

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


def _add_links(
    blobs: Blobs, job: ExportJob, linked: Sequence[str], rows: Sequence[Row]
) -> Iterator[Sequence[Row]]:
    """Add presigned links. They are signed as of the request, so that all links of an export end at
    once: with the export, or after the seven days that signatures have."""
    lasting = min(job.expires_at - job.requested_at, _LONGEST_LINK)
    seconds = max(1, int(lasting.total_seconds()))

    def sign(row: Row, blob: str) -> str | None:
        key = get_storage_key(row.inference, blob)
        if key is None:
            return None
        try:
            return blobs.presign(parse_stored(key), seconds, at=job.requested_at)
        except BlobMissing:  # a key that no client can address, or a bucket no longer allowed
            return None

    yield [row._replace(urls={blob: sign(row, blob) for blob in linked}) for row in rows]


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
        for row in self._read_all(rows):
            row_size = sum(map(len, filter(None, (row.contents or {}).values())))
            if batch and (size + row_size > _BATCH_BYTES or len(batch) == _BATCH_ROWS):
                yield batch
                batch, size = [], 0
            batch.append(row)
            size += row_size
        if batch:
            yield batch

    def _read_all(self, rows: Sequence[Row]) -> Iterator[Row]:
        while rows:
            some = self._read_some(rows[:_BATCH_ROWS])
            rows = rows[len(some) :]
            for row, results in some:
                yield row._replace(contents=self._take(results))

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
