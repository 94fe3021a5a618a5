"""A page of a bucket's listing, in the order of its keys."""

from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from minio import Minio

from inference_store.inference.events import StorageKey


class Found(NamedTuple):
    """An object as it is listed."""

    place: StorageKey
    size: int
    modified_at: datetime


def page(client: Minio, bucket: str, prefix: str, after: str, limit: int) -> list[Found]:
    """The first `limit` objects under a prefix whose keys come after `after` (UTF-8's order)."""
    # MinIO refuses a start that is not under the prefix.
    start = after if after.startswith(prefix) and after != prefix else None
    listed = client.list_objects(bucket, prefix=prefix, start_after=start, recursive=True)
    found = (one for one in listed if one.object_name is not None and not one.is_dir)
    return [
        Found(
            StorageKey(bucket, one.object_name or ""),
            one.size or 0,
            one.last_modified or datetime.now(UTC),
        )
        for one in islice(found, limit)
    ]
