"""Encodes the members of a part that are still there into a file, page by page."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.blob_choices import ChosenBlobs
from inference_store.export.columns import Columns
from inference_store.export.fixed_columns import Row
from inference_store.export.part_formats import PART_FORMATS, PartEncoder
from inference_store.index import key_registry
from inference_store.index.key_registry import KeySeen
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.query.scan_range import find_ranges
from inference_store.query.stored_blobs import STORAGE_KEYS
from inference_store.query.visible import read_visible

from . import state_changes
from .blob_copies import CopyLimits, CopySource
from .blob_links import LinkSource
from .job import Confirm, ExportJob, read_model_id
from .saved_keys import load_keys, save_keys

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
