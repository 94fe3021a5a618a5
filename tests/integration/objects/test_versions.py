"""Deletion removes every version, if the bucket has versions."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest
from minio.commonconfig import ENABLED, GOVERNANCE
from minio.retention import Retention
from minio.versioningconfig import SUSPENDED, VersioningConfig

from inference_store.objects import Blobs
from inference_store.objects.listing import survivors
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import make_blob_settings

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    name = minio_server.create_bucket(unique())
    minio_server.client().set_bucket_versioning(name, VersioningConfig(ENABLED))
    return name


@pytest.fixture
def blobs(minio_server: S3, bucket: str) -> Iterator[Blobs]:
    with Blobs(make_blob_settings(minio_server, bucket)) as opened:
        yield opened


def count_versions(s3: S3, bucket: str) -> int:
    return len(list(s3.client().list_objects(bucket, recursive=True, include_version=True)))


def test_every_version_and_marker_goes(minio_server: S3, blobs: Blobs, bucket: str) -> None:
    keys = [blobs.parse(f"hour/{number:03}/data") for number in range(20)]
    for _ in range(2):
        for key in keys:
            blobs.put(key, b"x", content_type="text/plain")
    for key in keys[:5]:
        minio_server.client().remove_object(bucket, key.key)
    assert count_versions(minio_server, bucket) == 45
    assert blobs.still_there(keys) == keys  # a marker hides the data without removing it
    assert blobs.delete_objects(keys[:10]) == []
    assert blobs.still_there(keys) == keys[10:]
    assert blobs.delete_objects(keys) == []
    assert count_versions(minio_server, bucket) == 0


def test_deletes_versions_while_suspended(minio_server: S3, blobs: Blobs, bucket: str) -> None:
    key = blobs.parse("a")
    blobs.put(key, b"x", content_type="text/plain")
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(SUSPENDED))
    blobs.put(key, b"y", content_type="text/plain")
    assert blobs.delete_objects([key]) == []
    assert count_versions(minio_server, bucket) == 0


def test_reports_a_locked_version_as_held(minio_server: S3) -> None:
    bucket = minio_server.create_bucket(unique(), object_lock=True)
    until = Retention(GOVERNANCE, datetime.now(UTC) + timedelta(minutes=10))
    minio_server.client().put_object(bucket, "held", BytesIO(b"x"), 1, retention=until)
    with Blobs(make_blob_settings(minio_server, bucket)) as blobs:
        key = blobs.parse("held")
        (fault,) = blobs.delete_objects([key])
        assert fault.held
        assert fault.key == key
        assert blobs.still_there([key]) == [key]


def put_empty(s3: S3, bucket: str, names: Iterable[str]) -> None:
    """Put an empty object under each name; the versions of one name have no order."""
    client = s3.client()
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda name: client.put_object(bucket, name, BytesIO(b""), 0), names):
            pass


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_lists_keys_that_are_far_apart(minio_server: S3, executor: ThreadPoolExecutor) -> None:
    bucket = minio_server.create_bucket(unique())
    client = minio_server.client()
    put_empty(minio_server, bucket, (f"k{number:05}" for number in range(2200)))
    for keys in (["k00000", "k00001", "k02100", "k02300"], ["k00500", "k00700", "k02199", "k3"]):
        for expected in (True, False):
            versions = survivors(
                client, bucket, keys, versions=False, executor=executor, expected=expected
            )
            assert [version.key for version in versions] == keys[:3]


_KEYS = ["hour/a/data", "hour/b", "hour/b/data", "hour/c/a +%é/data", "hour/c/data", "hour/d"]


@pytest.fixture
def many_versions(minio_server: S3) -> str:
    """Fill a bucket with more versions of one key, and more keys beside it, than a page has."""
    name = minio_server.create_bucket(unique())
    client = minio_server.client()
    client.set_bucket_versioning(name, VersioningConfig(ENABLED))
    put_empty(minio_server, name, ["hour/b/data"] * 1100)
    put_empty(minio_server, name, (f"hour/b/data{number:04}" for number in range(1100)))
    for marked in (_KEYS[0], *_KEYS[3:5]):
        client.put_object(name, marked, BytesIO(b""), 0)
        client.remove_object(name, marked)
    return name


def test_finds_versions_beyond_a_page(
    minio_server: S3, many_versions: str, executor: ThreadPoolExecutor
) -> None:
    """Versions of one key, of keys among many others, and of names that begin alike."""
    client = minio_server.client()
    for expected in (True, False):
        versions = survivors(
            client, many_versions, _KEYS, versions=True, executor=executor, expected=expected
        )
        assert len(versions) == len(set(versions)) == 1100 + 6
        assert [version.key for version in versions if version.marker] == [_KEYS[0], *_KEYS[3:5]]
        assert sum(version.latest for version in versions) == 4
    for key in _KEYS:
        alone = survivors(client, many_versions, [key], versions=True, executor=executor)
        assert sorted(alone) == sorted(version for version in versions if version.key == key)
