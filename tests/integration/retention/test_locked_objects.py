"""Buckets that keep versions, and locks of S3 on them: on a real MinIO."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE, ENABLED, GOVERNANCE
from minio.retention import Retention
from minio.versioningconfig import VersioningConfig
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.progress.erasure import Erasure, find_erasure, list_unfinished
from inference_store.erasure.verify.blocked_objects import list_blocked
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.integration import erasure_requests
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .exported import export_all
from .stored import METADATA_BLOB, Storing, ago

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


@pytest.fixture
def blobs(settings: RetentionSettings) -> Iterator[Blobs]:
    with Blobs(settings) as opened:
        yield opened


def list_versions(server: S3, bucket: str) -> list[tuple[str, bool]]:
    """Every version and delete marker: its name, and whether it is a marker."""
    listed = server.client().list_objects(bucket, recursive=True, include_version=True)
    return [
        (str(listed_object.object_name), bool(listed_object.is_delete_marker))
        for listed_object in listed
    ]


async def request_old(engine: AsyncEngine, storing: Storing, model: int) -> Erasure:
    async with engine.begin() as connection:
        uids = list(await storing.stored())
        return await erasure_requests.request_erasure(connection, model=model, uids=uids)


async def reload_erasure(engine: AsyncEngine, erasure: Erasure) -> Erasure:
    async with engine.connect() as connection:
        reloaded = await find_erasure(connection, erasure.id)
    assert reloaded is not None
    return reloaded


async def find_due(engine: AsyncEngine) -> list[Erasure]:
    async with engine.connect() as connection:
        return await list_unfinished(connection, failed=False)


async def finish_due(engine: AsyncEngine, eraser: Eraser) -> list[str | None]:
    """Work on the erasures that are due, as a run does; return their states."""
    due = await find_due(engine)
    async with engine.connect() as connection:
        failed = await list_unfinished(connection, failed=True)
    # if the lock ends while a try fails, nobody says when: the next run tries again
    due += [erasure for erasure in failed if erasure.state == "failed" and not erasure.retry_at]
    return [await eraser.finish(erasure) for erasure in due]


@pytest.mark.parametrize("mode", [GOVERNANCE, COMPLIANCE])
async def test_what_is_locked_is_named_and_goes_when_its_lock_ends(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3, mode: str
) -> None:
    model = await storing.model()
    locked, _ = await storing.inferences(model, 2, ago(days=1))
    key = locked.objects[0]
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    minio_server.client().set_object_retention(key.bucket, key.key, Retention(mode, end))
    erasure = await request_old(engine, storing, model)
    assert await eraser.finish(erasure) == "failed"
    failed = await reload_erasure(engine, erasure)
    assert failed.inferences == 1
    assert str(key) in (failed.error or "")
    assert failed.retry_at == end
    async with engine.connect() as connection:
        [obstacle] = await list_blocked(connection, erasure.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), end)
    assert "WORM" in obstacle.message
    # the data itself is there, not a marker over it
    assert (key.key, False) in list_versions(minio_server, key.bucket)
    assert (key.key, True) not in list_versions(minio_server, key.bucket)
    assert await storing.stored() == {locked.uid}
    assert await find_due(engine) == []
    [brief] = await storing.inferences(model, 1, ago(days=1))
    key = brief.objects[0]
    # so brief that it ends: on a busy machine before the first try
    end = datetime.now(UTC) + timedelta(seconds=5)
    minio_server.client().set_object_retention(key.bucket, key.key, Retention(mode, end))
    async with engine.begin() as connection:
        goes = await erasure_requests.request_erasure(connection, model=model, uids=[brief.uid])
    await until(lambda: finish_due(engine, eraser), lambda states: states == ["deleted"])
    assert not {(key.key, False), (key.key, True)} & {*list_versions(minio_server, key.bucket)}
    assert (await reload_erasure(engine, goes)).inferences == 1
    assert await storing.stored() == {locked.uid}
    async with engine.connect() as connection:
        assert await list_blocked(connection, goes.id) == []


async def test_a_legal_hold_of_s3_has_no_known_end(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3
) -> None:
    model = await storing.model()
    held, _ = await storing.inferences(model, 2, ago(days=1))
    key = held.objects[1]
    minio_server.client().enable_object_legal_hold(key.bucket, key.key)
    erasure = await request_old(engine, storing, model)
    assert await eraser.finish(erasure) == "failed"
    assert (await reload_erasure(engine, erasure)).retry_at is None
    async with engine.connect() as connection:
        [obstacle] = await list_blocked(connection, erasure.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), None)
    tried = await reload_erasure(engine, erasure)
    assert (tried.inferences, tried.objects, tried.versions) == (1, 3, 5)
    minio_server.client().disable_object_legal_hold(key.bucket, key.key)
    assert await eraser.finish(await reload_erasure(engine, erasure)) == "deleted"
    assert list_versions(minio_server, key.bucket) == []
    ended = await reload_erasure(engine, erasure)
    assert (ended.inferences, ended.objects, ended.versions) == (2, 6, 6)


async def test_deletes_and_counts_every_version(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3
) -> None:
    model = await storing.model()
    [inference] = await storing.inferences(model, 1, ago(days=1))
    first, *_ = inference.objects
    storing.blobs.put(first, b"four", content_type="text/plain")
    minio_server.client().remove_object(first.bucket, first.key)
    there = len(list_versions(minio_server, first.bucket))
    assert there == 5  # three objects, one of them once more, and a marker
    erasure = await request_old(engine, storing, model)
    assert await eraser.finish(erasure) == "deleted"
    assert list_versions(minio_server, first.bucket) == []
    gone = await reload_erasure(engine, erasure)
    assert (gone.inferences, gone.objects, gone.versions) == (1, 3, 5)
    assert gone.bytes == len(b"x" + b"four" + b"x" + METADATA_BLOB)
    assert gone.oldest == gone.newest is not None
    assert gone.table_rows["inference"] == 1
    assert gone.table_rows["metadata_number"] == 1


def test_versioning_enabled_between_two_listings_hides_nothing(
    minio_server: S3, settings: RetentionSettings
) -> None:
    """A delete without a version's id writes a marker there, and the data stays: seen."""
    bucket = minio_server.create_bucket(unique())
    with Blobs(settings.model_copy(update={"s3_bucket": bucket})) as blobs:
        key, other = StorageKey(bucket, "a/data"), StorageKey(bucket, "b/data")
        for storage_key in (key, other):
            blobs.put(storage_key, b"x", content_type="text/plain")
        assert blobs.delete_objects([other]) == []
        minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
        assert blobs.delete_objects([key]) == []  # by what was known of the bucket before
        assert blobs.still_there([key]) == [key]
        assert blobs.delete_objects([key]) == []
        assert blobs.still_there([key]) == []
        assert list_versions(minio_server, bucket) == []


@pytest.mark.parametrize("name", ["parts/", "members/", "manifest.json"])
async def test_an_erasure_waits_for_a_locked_copy_in_an_export(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3, name: str
) -> None:
    model = await storing.model()
    gone, *others = await storing.inferences(model, 3, ago(days=1))
    exported = await export_all(engine, storing.blobs, [gone, *others])
    client, prefix = minio_server.client(), f"exports/{exported.id}/"
    [listed] = client.list_objects(storing.bucket, prefix=prefix + name)
    key = exported.key(str(listed.object_name))
    # a list is written again over the version that is locked
    version = str(client.stat_object(key.bucket, key.key).version_id)
    client.enable_object_legal_hold(key.bucket, key.key, version)
    async with engine.begin() as connection:
        erasure = await erasure_requests.request_erasure(connection, model=model, uids=[gone.uid])
    assert await eraser.finish(erasure) == "failed"
    assert str(key) in ((await reload_erasure(engine, erasure)).error or "")
    async with engine.connect() as connection:
        [obstacle] = await list_blocked(connection, erasure.id)
    assert obstacle.storage_key == str(key)
    [part] = await exported.parts()
    assert part.state == "stale"
    assert await storing.stored() == {other.uid for other in others}
    client.disable_object_legal_hold(key.bucket, key.key, version)
    assert await eraser.finish(await reload_erasure(engine, erasure)) == "deleted"
    [part] = await exported.parts()
    assert (part.state, part.storage_key) == ("listed", None)
    versions = [name for name, _ in list_versions(minio_server, key.bucket)]
    assert [name for name in versions if name.startswith(prefix)] == [
        f"{prefix}export.json",
        f"{prefix}members/00001",
    ]
    members = exported.read(f"{prefix}members/00001")
    assert members == b"".join(sorted(other.uid.bytes for other in others))
    async with engine.connect() as connection:
        assert await list_blocked(connection, erasure.id) == []
