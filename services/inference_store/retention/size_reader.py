"""Reads sizes of objects from the bucket for limits by bytes: a few seconds at a time.

Up to `after` every size is known. Once a day all are read again, because late inferences may have
arrived and objects may have been deleted.
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.select import sizes
from inference_store.erasure.select.sizes import Unsized
from inference_store.inference.errors import AccessDenied, BlobMissing
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs

from .leadership_check import LeadershipCheck

_LOWEST: Final = UUID(int=0)
_BATCH: Final = 500
_THREADS: Final = 8
_SECONDS: Final = 10.0
_REREAD_SECONDS: Final = 24 * 3600.0


class SizeReader:
    """Stores the sizes for models that have a limit by bytes, or will have one, so that a preview
    can show the effect of the limit."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs, check: LeadershipCheck) -> None:
        self._engine = engine
        self._blobs = blobs
        self._check = check
        self._after: dict[int, UUID] = {}
        self._began = time.monotonic()

    async def run_turn(self) -> None:
        """Read some sizes. Raises Stopped, ObjectStoreUnavailable and the errors of the
        database."""
        if time.monotonic() > self._began + _REREAD_SECONDS:
            self._after.clear()
            self._began = time.monotonic()
        async with self._engine.connect() as connection:
            models = await policies.list_limited_by_bytes(connection)
        until = time.monotonic() + _SECONDS
        for model in models:
            while time.monotonic() < until and await self._read_some(model):
                await self._check.confirm_step()

    async def _read_some(self, model: int) -> bool:
        """Read some sizes of a model; False if all are known."""
        after = self._after.get(model, _LOWEST)
        async with self._engine.connect() as connection:
            unsized = await sizes.list_unknown(connection, model, after=after, limit=_BATCH)
        if not unsized:
            return False
        sizes_read = await asyncio.to_thread(self._read_sizes, unsized)
        async with self._engine.begin() as connection:
            await sizes.record_sizes(connection, model, sizes_read)
        self._after[model] = unsized[-1].uid
        return True

    def _read_sizes(self, unsized: list[Unsized]) -> dict[UUID, int]:
        """Return the sizes of inferences whose objects could all be read. Blocks."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="size") as executor:
            pairs = zip(unsized, executor.map(self._read_size, unsized), strict=True)
            return {item.uid: size for item, size in pairs if size is not None}

    def _read_size(self, item: Unsized) -> int | None:
        total = 0
        for key in item.keys:
            storage_key = parse_stored(key)
            if storage_key.bucket not in self._blobs.buckets.allowed:
                return None
            try:
                total += self._blobs.head(storage_key)
            except BlobMissing:
                continue  # a missing object has no size
            except AccessDenied:
                return None
        return total
