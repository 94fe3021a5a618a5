"""A page of a bucket's listing, in the order of its keys."""

from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from minio import Minio

from inference_store.inference.events import StorageKey


class Found(NamedTuple):
    """A listed object."""

    place: StorageKey
    size: int
    modified_at: datetime


def page(client: Minio, bucket: str, prefix: str, after: str, limit: int) -> list[Found]:
    """Return the first `limit` objects under a prefix whose keys come after `after` (UTF-8's
    order)."""
    # MinIO refuses a start that is not under the prefix.
    start = after if after.startswith(prefix) and after != prefix else None
    listed = client.list_objects(bucket, prefix=prefix, start_after=start, recursive=True)
    objects = (entry for entry in listed if entry.object_name is not None and not entry.is_dir)
    return [
        Found(
            StorageKey(bucket, entry.object_name or ""),
            entry.size or 0,
            entry.last_modified or datetime.now(UTC),
        )
        for entry in islice(objects, limit)
    ]
