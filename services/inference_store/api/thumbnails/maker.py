"""Makes thumbnails of inferences: from the cache, or from their inputs in the bucket."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from uuid import UUID

from inference_store.inference.errors import (
    BlobMissing,
    BlobTooLarge,
    Busy,
    Gone,
    NotFound,
    NoThumbnail,
    StoreError,
)
from inference_store.inference.events.event import parse_stored
from inference_store.objects import Blobs
from inference_store.query.read import Inference, get_storage_key, is_erased

from .cache import Key, ThumbnailCache
from .decoder import Decoder, Thumbnail

MOST_INPUT_BYTES: Final = 20 * 1024 * 1024
BATCH_SECONDS: Final = 30.0
"""All pictures of a request together take no longer."""
_NO_PICTURE: Final = ("text/", "audio/", "video/", "application/json")
ThumbnailResult = Thumbnail | StoreError
_TOO_LARGE: Final = f"The input is over {MOST_INPUT_BYTES // 1024 // 1024} MiB."


class ThumbnailMaker:
    """Makes thumbnails of stored inferences."""

    def __init__(self, blobs: Blobs, cache: ThumbnailCache) -> None:
        self._blobs, self._cache = blobs, cache

    def find_cached(
        self, inferences: Sequence[Inference], edge: int
    ) -> dict[UUID, ThumbnailResult]:
        """Return the cached thumbnails, and the refusals that the index already implies."""
        results: dict[UUID, ThumbnailResult] = {}
        for inference in inferences:
            result = _find_refusal(inference) or self._cache.get(_make_key(inference, edge))
            if result is not None:
                results[inference.uid] = result
        return results

    async def make(self, inferences: Sequence[Inference], edge: int) -> dict[UUID, ThumbnailResult]:
        """Make thumbnails, one after the other. Those that are not made in time are Busy."""
        results: dict[UUID, ThumbnailResult] = {}
        until = time.monotonic() + BATCH_SECONDS
        pictures = self._fetch(inferences)
        async with Decoder() as decoder, aclosing(pictures):
            async for inference, picture in pictures:
                if time.monotonic() > until:
                    break
                results[inference.uid] = await self._make_one(decoder, inference, picture, edge)
        late = Busy("The pictures before it took too long. Ask for it again.")
        return {inference.uid: results.get(inference.uid, late) for inference in inferences}

    def forget(self, model: int, uid: UUID) -> None:
        """Drop what is cached of an inference that is deleted, or whose input is."""
        self._cache.forget(model, uid)

    async def _make_one(
        self, decoder: Decoder, inference: Inference, picture: bytes | StoreError, edge: int
    ) -> ThumbnailResult:
        if isinstance(picture, StoreError):
            return picture
        try:
            thumbnail = await decoder.make(picture, edge)
        except NoThumbnail as refused:
            return refused
        self._cache.put(_make_key(inference, edge), thumbnail)
        return thumbnail

    async def _fetch(
        self, inferences: Sequence[Inference]
    ) -> AsyncGenerator[tuple[Inference, bytes | StoreError], None]:
        """Yield the inputs in order; one is fetched while the one before it is decoded."""
        ahead: list[asyncio.Task[bytes | StoreError]] = []
        try:
            for number, inference in enumerate(inferences):
                if not ahead:
                    ahead.append(asyncio.create_task(self._fetch_one(inference)))
                following = inferences[number + 1 : number + 2]
                ahead += [asyncio.create_task(self._fetch_one(next_one)) for next_one in following]
                yield inference, await ahead.pop(0)
        finally:
            for task in ahead:
                task.cancel()
            await asyncio.gather(*ahead, return_exceptions=True)

    async def _fetch_one(self, inference: Inference) -> bytes | StoreError:
        """Return the input, or why there is none. Raises ObjectStoreUnavailable."""
        key = get_storage_key(inference, "data")
        assert key is not None, "the index has said that there is one"
        try:
            storage_key = parse_stored(key)
            return await asyncio.to_thread(self._blobs.get, storage_key, limit=MOST_INPUT_BYTES)
        except BlobMissing:
            return NotFound(f"The object {key} is not in the bucket.")
        except BlobTooLarge:
            return NoThumbnail(_TOO_LARGE)


def _find_refusal(inference: Inference) -> StoreError | None:
    """Return why there is no thumbnail, as far as the index knows."""
    if is_erased(inference, "data"):
        return Gone("The data of this inference has been deleted.")
    if get_storage_key(inference, "data") is None:
        return NotFound("The inference has no data.")
    if (inference.row["data_size"] or 0) > MOST_INPUT_BYTES:
        return NoThumbnail(_TOO_LARGE)
    media_type = inference.row["data_content_type"] or ""
    if media_type.lower().startswith(_NO_PICTURE):
        return NoThumbnail(f"The input is no picture: its media type is {media_type[:100]!r}.")
    return None


def _make_key(inference: Inference, edge: int) -> Key:
    return inference.row["model"], inference.uid, str(get_storage_key(inference, "data")), edge
