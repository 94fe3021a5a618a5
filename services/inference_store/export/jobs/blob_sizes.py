"""The sizes of the blobs that an export will copy, before they are read: they close its lists."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ARRAY, any_, literal, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.inference.errors import AccessDenied, BlobMissing
from inference_store.inference.events import parse_stored
from inference_store.objects import Blobs
from inference_store.query.stored_blobs import STORAGE_KEYS

_HERE: Final = inference.c
_UIDS: Final = ARRAY(UUID_TYPE(as_uuid=True))
_THREADS: Final = 8


async def measure_blobs(
    engine: AsyncEngine,
    blobs: Blobs,
    model: int,
    uids: Sequence[UUID],
    *,
    copied: Sequence[str],
    most: int,
) -> list[int]:
    """Return the bytes to copy of each inference; blobs over `most` are not copied.

    The index has the size of most inputs; S3 is asked for the others. Raises
    ObjectStoreUnavailable.
    """
    columns = (_HERE.data_size, *(_HERE[STORAGE_KEYS[blob]] for blob in copied))
    query = select(_HERE.uid, *columns).where(
        _HERE.model == model, _HERE.uid == any_(literal(uids, _UIDS))
    )
    async with engine.connect() as connection:  # none is open while S3 is asked
        rows = {row.uid: row for row in await connection.execute(query)}
    wanted = [(rows.get(uid), blob) for uid in uids for blob in copied]

    def measure() -> list[int]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs-head") as executor:
            return [*executor.map(partial(_measure_one, blobs, most), *zip(*wanted, strict=True))]

    sizes = await asyncio.to_thread(measure)
    width = len(copied)
    return [sum(sizes[at : at + width]) for at in range(0, len(sizes), width)]


def _measure_one(blobs: Blobs, most: int, row: Any, blob: str) -> int:
    """Return the size of a blob; 0 if it will be missing."""
    text = None if row is None else row._mapping[STORAGE_KEYS[blob]]
    if text is None:
        return 0
    size = row.data_size if blob == "data" else None
    if size is None:
        size = _request_size(blobs, text, most)
    return int(size) if size <= most else 0


def _request_size(blobs: Blobs, text: str, most: int) -> int:
    key = parse_stored(text)
    if key.bucket not in blobs.buckets.allowed:
        return 0
    try:
        return blobs.head(key)
    except BlobMissing:
        return 0
    except AccessDenied:  # a HEAD does not tell whether S3 refuses this object alone
        [content] = blobs.get_many([key], limit=most)
        return len(content) if isinstance(content, bytes) else 0
