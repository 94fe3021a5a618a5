"""The end of an object's lock in S3: object lock and its retention."""

from datetime import UTC, datetime

from minio import Minio
from minio.error import S3Error

from inference_store.inference.events import StorageKey

from .clients import translate_errors


def locked_until(client: Minio, key: StorageKey) -> datetime | None:
    """Return when the last lock on any version of an object ends; None if it is unknown.

    A legal hold of S3 has no end, and without the right to read locks it is unknown. Raises
    ObjectStoreUnavailable.
    """
    with translate_errors():
        listed = client.list_objects(
            key.bucket, prefix=key.key, recursive=True, include_version=True
        )
        versions = [
            entry.version_id
            for entry in listed
            if entry.object_name == key.key and not entry.is_delete_marker
        ]
        ends = [_find_end(client, key, version) for version in versions]
    now = datetime.now(UTC)
    later = [end for end in ends if end is not None and end > now]
    return max(later, default=None)


def _find_end(client: Minio, key: StorageKey, version: str | None) -> datetime | None:
    try:
        retention = client.get_object_retention(key.bucket, key.key, version_id=version)
    except S3Error as exc:
        if exc.response.status >= 500:
            raise
        return None
    return None if retention is None else retention.retain_until_date
