"""Buckets that keep versions, and locks of S3 on them: on a real MinIO."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE, ENABLED, GOVERNANCE
from minio.retention import Retention
from minio.versioningconfig import VersioningConfig
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, obstacles
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.integration import by_uids
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .stored import METADATA_BLOB, Storing, ago

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


@pytest.fixture
def blobs(settings: RetentionSettings) -> Iterator[Blobs]:
    with Blobs(settings) as made:
        yield made


def versions(server: S3, bucket: str) -> list[tuple[str, bool]]:
    """Every version and delete marker: its name, and whether it is a marker."""
    listed = server.client().list_objects(bucket, recursive=True, include_version=True)
    return [(str(one.object_name), bool(one.is_delete_marker)) for one in listed]


async def asked(engine: AsyncEngine, storing: Storing, model: int) -> Erasure:
    async with engine.begin() as connection:
        uids = list(await storing.stored())
        return await by_uids.request(connection, model=model, uids=uids)


async def seen(engine: AsyncEngine, one: Erasure) -> Erasure:
    async with engine.connect() as connection:
        found = await erasures.find(connection, one.id)
    assert found is not None
    return found


async def due(engine: AsyncEngine) -> list[Erasure]:
    async with engine.connect() as connection:
        return await erasures.unfinished(connection, failed=False)


@pytest.mark.parametrize("mode", [GOVERNANCE, COMPLIANCE])
async def test_what_is_locked_is_named_and_goes_when_its_lock_ends(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3, mode: str
) -> None:
    model = await storing.model()
    locked, _ = await storing.inferences(model, 2, ago(days=1))
    key = locked.objects[0]
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=6)
    minio_server.client().set_object_retention(key.bucket, key.key, Retention(mode, end))
    one = await asked(engine, storing, model)
    assert await eraser.finish(one) == "failed"
    failed = await seen(engine, one)
    assert failed.inferences == 1
    assert str(key) in (failed.error or "")
    assert failed.retry_at == end
    async with engine.connect() as connection:
        [obstacle] = await obstacles.listed(connection, one.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), end)
    assert "WORM" in obstacle.message
    # the data itself is there, not a marker over it
    assert (key.key, False) in versions(minio_server, key.bucket)
    assert (key.key, True) not in versions(minio_server, key.bucket)
    assert await storing.stored() == {locked.uid}
    assert await due(engine) == []
    [again] = await until(lambda: due(engine), bool, seconds=180)
    assert await eraser.finish(again) == "deleted"
    assert versions(minio_server, key.bucket) == []
    assert (await seen(engine, one)).inferences == 2
    async with engine.connect() as connection:
        assert await obstacles.listed(connection, one.id) == []


async def test_a_legal_hold_of_s3_has_no_end_that_anybody_knows(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3
) -> None:
    model = await storing.model()
    held, _ = await storing.inferences(model, 2, ago(days=1))
    key = held.objects[1]
    minio_server.client().enable_object_legal_hold(key.bucket, key.key)
    one = await asked(engine, storing, model)
    assert await eraser.finish(one) == "failed"
    assert (await seen(engine, one)).retry_at is None
    async with engine.connect() as connection:
        [obstacle] = await obstacles.listed(connection, one.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), None)
    tried = await seen(engine, one)
    assert (tried.inferences, tried.objects, tried.versions) == (1, 3, 5)
    minio_server.client().disable_object_legal_hold(key.bucket, key.key)
    assert await eraser.finish(await seen(engine, one)) == "deleted"
    assert versions(minio_server, key.bucket) == []
    ended = await seen(engine, one)
    assert (ended.inferences, ended.objects, ended.versions) == (2, 6, 6)


async def test_every_version_goes_and_is_counted(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3
) -> None:
    model = await storing.model()
    [one] = await storing.inferences(model, 1, ago(days=1))
    first, *_ = one.objects
    storing.blobs.put(first, b"four", content_type="text/plain")
    minio_server.client().remove_object(first.bucket, first.key)
    there = len(versions(minio_server, first.bucket))
    assert there == 5  # three objects, one of them once more, and a marker
    erasure = await asked(engine, storing, model)
    assert await eraser.finish(erasure) == "deleted"
    assert versions(minio_server, first.bucket) == []
    gone = await seen(engine, erasure)
    assert (gone.inferences, gone.objects, gone.versions) == (1, 3, 5)
    assert gone.bytes == len(b"x" + b"four" + b"x" + METADATA_BLOB)
    assert gone.oldest == gone.newest is not None
    assert gone.table_rows["inference"] == 1
    assert gone.table_rows["metadata_number"] == 1


def test_versioning_that_began_between_two_looks_hides_nothing(
    minio_server: S3, settings: RetentionSettings
) -> None:
    """A delete without a version's id writes a marker there, and the data stays: seen."""
    bucket = minio_server.create_bucket(unique())
    with Blobs(settings.model_copy(update={"s3_bucket": bucket})) as blobs:
        key, other = StorageKey(bucket, "a/data"), StorageKey(bucket, "b/data")
        for each in (key, other):
            blobs.put(each, b"x", content_type="text/plain")
        assert blobs.delete_objects([other]) == []
        minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
        assert blobs.delete_objects([key]) == []  # by what was known of the bucket before
        assert blobs.still_there([key]) == [key]
        assert blobs.delete_objects([key]) == []
        assert blobs.still_there([key]) == []
        assert versions(minio_server, bucket) == []
