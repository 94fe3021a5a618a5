"""Reads the size and the age of objects from the bucket, many at once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs

_THREADS: Final = 16


def inspect_objects(blobs: Blobs, keys: Sequence[str]) -> dict[str, tuple[int, datetime | None]]:
    """Return the size and write time of each object; no time: it has no current version. Blocks."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="orphans") as executor:
        inspected = executor.map(lambda key: _inspect_object(blobs, key), keys)
        return dict(zip(keys, inspected, strict=True))


def _inspect_object(blobs: Blobs, key: str) -> tuple[int, datetime | None]:
    storage_key = parse_stored(key)
    objects = blobs.page(storage_key.bucket, storage_key.key, after="", limit=1)
    if objects and objects[0].place == storage_key:
        return objects[0].size, objects[0].modified_at
    return 0, None
