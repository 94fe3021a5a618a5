"""Until when S3 keeps an object: object lock and its retention."""

from datetime import UTC, datetime

from minio import Minio
from minio.error import S3Error

from inference_store.inference.events import StorageKey

from .clients import away


def locked_until(client: Minio, key: StorageKey) -> datetime | None:
    """When the last lock on any version of an object ends; None: nobody says.

    A legal hold of S3 has no end, and who may not ask is told nothing. Raises BlobsAway.
    """
    with away():
        listed = client.list_objects(
            key.bucket, prefix=key.key, recursive=True, include_version=True
        )
        versions = [
            each.version_id
            for each in listed
            if each.object_name == key.key and not each.is_delete_marker
        ]
        ends = [_end(client, key, version) for version in versions]
    now = datetime.now(UTC)
    later = [end for end in ends if end is not None and end > now]
    return max(later, default=None)


def _end(client: Minio, key: StorageKey, version: str | None) -> datetime | None:
    try:
        found = client.get_object_retention(key.bucket, key.key, version_id=version)
    except S3Error as exc:
        if exc.response.status >= 500:
            raise
        return None
    return None if found is None else found.retain_until_date
