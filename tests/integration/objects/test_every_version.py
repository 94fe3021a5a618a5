"""Listing every version also works with a server without versioning."""

from datetime import UTC, datetime, timedelta

from inference_store.inference.events import StorageKey
from inference_store.objects import LockedObject
from inference_store.objects.inventory import inventory
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import make_blob_settings


def test_lists_versions_without_versioning(s3: S3) -> None:
    bucket = s3.create_bucket(unique())
    settings = make_blob_settings(s3, bucket)
    key = StorageKey(bucket, "a/head")
    written = LockedObject(settings, key)
    assert list(written.versions(limit=10)) == []
    for data in (b"one", b"two"):
        until = datetime.now(UTC) + timedelta(days=1)
        assert not written.put(data, content_type="text/plain", until=until)
    assert list(written.versions(limit=10)) == [b"two"]
    assert not written.is_locked()
    assert [entry.key for entry in inventory(settings)] == [key]
