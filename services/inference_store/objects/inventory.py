"""Lists everything in the buckets, in every version."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from minio import Minio
from minio.datatypes import Object
from minio.error import MinioException, S3Error

from inference_store.inference.events import StorageKey
from inference_store.platform.settings import BlobSettings

from .clients import knows_no_versions, minio_client, translate_errors


class Held(NamedTuple):
    """An object that exists, in some version; `modified`: when it was written."""

    key: StorageKey
    modified: datetime | None


def inventory(settings: BlobSettings) -> Iterator[Held]:
    """Yield every object of every allowed bucket, each version once, without delete markers.

    Blocks; raises ObjectStoreUnavailable. Without the right to list versions: current ones only.
    """
    client = minio_client(settings, settings.s3_endpoint)
    for bucket in sorted(settings.buckets):
        with translate_errors():
            for entry in _list_entries(client, bucket):
                if entry.object_name is not None and not entry.is_delete_marker:
                    yield Held(StorageKey(bucket, entry.object_name), entry.last_modified)


def _list_entries(client: Minio, bucket: str) -> Iterator[Object]:
    listed = client.list_objects(bucket, recursive=True, include_version=True)
    try:
        first = next(listed, None)
    except MinioException as exc:
        refused = isinstance(exc, S3Error) and exc.code == "AccessDenied"
        if not (refused or knows_no_versions(exc)):
            raise
        yield from client.list_objects(bucket, recursive=True)
        return
    if first is not None:
        yield first
    yield from listed
