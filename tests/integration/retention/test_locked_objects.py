"""Buckets that keep versions, and locks of S3 on them: on a real MinIO."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from minio.commonconfig import COMPLIANCE, ENABLED, GOVERNANCE
from minio.retention import Retention
from minio.versioningconfig import VersioningConfig

from inference_store.erasure.progress import Erasure, list_blocked, list_unfinished
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.platform.settings import RetentionSettings
from tests.integration import erasure_requests
from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.minio import S3, MinioUser, statement

from .exported import export_all
from .stored import METADATA_BLOB, Archived, Storing, ago

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3) -> str:
    return minio_server.create_bucket(unique(), object_lock=True)


def list_versions(server: S3, bucket: str) -> list[tuple[str, bool]]:
    """Every version and delete marker but those of the ledger: its name, and whether it is a
    marker."""
    listed = server.client().list_objects(bucket, recursive=True, include_version=True)
    return [
        (str(listed_object.object_name), bool(listed_object.is_delete_marker))
        for listed_object in listed
        if not str(listed_object.object_name).startswith("ledger/")
    ]


async def find_due(storing: Storing) -> list[Erasure]:
    return await storing.transact(list_unfinished, failed=False)


async def finish_due(storing: Storing) -> list[str | None]:
    """Work on the erasures that are due, as a run does; return their states."""
    due = await find_due(storing)
    failed = await storing.transact(list_unfinished, failed=True)
    # if the lock ends while a try fails, nobody says when: the next run tries again
    due += [erasure for erasure in failed if erasure.state == "failed" and not erasure.retry_at]
    return [await storing.eraser.finish(erasure) for erasure in due]


@pytest.mark.parametrize("mode", [GOVERNANCE, COMPLIANCE])
async def test_what_is_locked_is_named_and_goes_when_its_lock_ends(
    storing: Storing, minio_server: S3, mode: str
) -> None:
    model, (locked, other) = await storing.begin(2, ago(days=1))
    key = locked.objects[0]
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    minio_server.client().set_object_retention(key.bucket, key.key, Retention(mode, end))
    erasure = await storing.request(locked, other)
    assert await storing.eraser.finish(erasure) == "failed"
    failed = await storing.reload(erasure)
    assert failed.inferences == 1
    assert str(key) in (failed.error or "")
    assert failed.retry_at == end
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), end)
    assert "WORM" in obstacle.message
    # the data itself is there, not a marker over it
    assert (key.key, False) in list_versions(minio_server, key.bucket)
    assert (key.key, True) not in list_versions(minio_server, key.bucket)
    assert await storing.stored() == {locked.uid}
    assert await find_due(storing) == []
    [brief] = await storing.inferences(model, 1, ago(days=1))
    key = brief.objects[0]
    # so brief that it ends: on a busy machine before the first try
    end = datetime.now(UTC) + timedelta(seconds=5)
    minio_server.client().set_object_retention(key.bucket, key.key, Retention(mode, end))
    goes = await storing.transact(erasure_requests.request_erasure, model=model, uids=[brief.uid])
    await until(lambda: finish_due(storing), lambda states: states == ["deleted"])
    assert not {(key.key, False), (key.key, True)} & {*list_versions(minio_server, key.bucket)}
    assert (await storing.reload(goes)).inferences == 1
    assert await storing.stored() == {locked.uid}
    assert await storing.transact(list_blocked, goes.id) == []


async def test_a_legal_hold_of_s3_has_no_known_end(storing: Storing, minio_server: S3) -> None:
    _, (held, other) = await storing.begin(2, ago(days=1))
    key = held.objects[1]
    minio_server.client().enable_object_legal_hold(key.bucket, key.key)
    erasure = await storing.request(held, other)
    assert await storing.eraser.finish(erasure) == "failed"
    assert (await storing.reload(erasure)).retry_at is None
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert (obstacle.storage_key, obstacle.retry_at) == (str(key), None)
    tried = await storing.reload(erasure)
    assert (tried.inferences, tried.objects, tried.versions) == (1, 3, 5)
    minio_server.client().disable_object_legal_hold(key.bucket, key.key)
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    assert list_versions(minio_server, key.bucket) == []
    ended = await storing.reload(erasure)
    assert (ended.inferences, ended.objects, ended.versions) == (2, 6, 6)


async def test_a_locked_segment_is_named_and_its_member_goes_when_it_may(
    storing: Storing, minio_server: S3
) -> None:
    model = await storing.model()
    first, second = await storing.packed(model, 2, ago(days=1))
    place = StorageKey(storing.bucket, first.objects[0].key.partition("#")[0])
    client = minio_server.client()
    version = client.stat_object(place.bucket, place.key).version_id
    client.enable_object_legal_hold(place.bucket, place.key)
    erasure = await storing.request(first)
    assert await storing.eraser.finish(erasure) == "failed"
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert obstacle.storage_key == str(place)
    assert "WORM" in obstacle.message
    assert await storing.stored() == {first.uid, second.uid}
    client.disable_object_legal_hold(place.bucket, place.key, version_id=version)
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    assert list_versions(minio_server, place.bucket) == [(place.key, False)]
    assert storing.blobs.get(second.objects[0], limit=100) == b"datum 1"


async def test_deletes_and_counts_every_version(storing: Storing, minio_server: S3) -> None:
    _, [inference] = await storing.begin(1, ago(days=1))
    first, *_ = inference.objects
    storing.blobs.put(first, b"four", content_type="text/plain")
    minio_server.client().remove_object(first.bucket, first.key)
    there = len(list_versions(minio_server, first.bucket))
    assert there == 5  # three objects, one of them once more, and a marker
    erasure = await storing.request(inference)
    assert await storing.eraser.finish(erasure) == "deleted"
    assert list_versions(minio_server, first.bucket) == []
    gone = await storing.reload(erasure)
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


@pytest.mark.parametrize("name", ["parts/", "manifest.json"])
async def test_an_erasure_waits_for_a_locked_copy_in_an_export(
    storing: Storing, minio_server: S3, name: str
) -> None:
    model, (gone, *others) = await storing.begin(3, ago(days=1))
    exported = await export_all(storing.engine, storing.blobs, [gone, *others])
    client, prefix = minio_server.client(), f"exports/{exported.id}/"
    [listed] = client.list_objects(storing.bucket, prefix=prefix + name)
    key = exported.key(str(listed.object_name))
    version = str(client.stat_object(key.bucket, key.key).version_id)
    client.enable_object_legal_hold(key.bucket, key.key, version)
    erasure = await storing.transact(erasure_requests.request_erasure, model=model, uids=[gone.uid])
    assert await storing.eraser.finish(erasure) == "failed"
    assert str(key) in ((await storing.reload(erasure)).error or "")
    [obstacle] = await storing.transact(list_blocked, erasure.id)
    assert obstacle.storage_key == str(key)
    [part] = await exported.parts()
    assert part.state == "stale"
    assert await storing.stored() == {other.uid for other in others}
    client.disable_object_legal_hold(key.bucket, key.key, version)
    assert await storing.eraser.finish(await storing.reload(erasure)) == "deleted"
    [part] = await exported.parts()
    assert (part.state, part.storage_key) == ("stale", None)
    versions = [name for name, _ in list_versions(minio_server, key.bucket)]
    assert [name for name in versions if name.startswith(prefix)] == []
    assert await storing.transact(list_blocked, erasure.id) == []


def list_delete_markers(s3: S3, key: StorageKey) -> list[bool]:
    """Return for each version of the key whether it is a delete marker."""
    listed = s3.client().list_objects(key.bucket, prefix=key.key, include_version=True)
    return [bool(listed_object.is_delete_marker) for listed_object in listed]


@pytest.mark.parametrize("sidecar", [False, True])
async def test_deletes_versions_hidden_by_a_delete_marker(
    storing: Storing, minio_server: S3, sidecar: bool
) -> None:
    (inference,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    key = await storing.sidecar(inference) if sidecar else inference.objects[2]
    storing.blobs.put(key, METADATA_BLOB, content_type="application/json")
    minio_server.client().remove_object(key.bucket, key.key)
    assert len(list_delete_markers(minio_server, key)) > 1
    await storing.erase(inference, scope="input")
    assert list_delete_markers(minio_server, key) == [True]
    # nothing is left to do if only the marker is there
    assert storing.blobs.delete_hidden(key) == []
    await storing.erase(inference)
    assert list_delete_markers(minio_server, key) == []


async def test_does_not_report_an_archived_blob_as_rewritten(
    storing: Storing, settings: RetentionSettings
) -> None:
    (inference,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    erasure = await storing.request(inference, scope="input")
    with Archived(settings) as archived:
        assert await storing.make_eraser(archived).finish(erasure) == "failed"
    error_text = str((await storing.reload(erasure)).error)
    assert "NotRewritten" in error_text
    assert "InvalidObjectState" in error_text
    assert inference.objects[2].key in storing.objects()
    assert await storing.eraser.finish(erasure) == "deleted"  # restored
    assert b"request" not in storing.blobs.get(inference.objects[2], limit=1000)


def test_an_existing_object_is_not_reported_as_hidden(storing: Storing) -> None:
    key = StorageKey(storing.bucket, "present")
    for blob in (b"older", b"newest"):
        storing.blobs.put(key, blob, content_type="text/plain")
    (fault,) = storing.blobs.delete_hidden(key)
    assert (fault.key, fault.code) == (key, "NotRewritten")
    assert storing.blobs.get(key, limit=10) == b"newest"


class Keeping(Blobs):
    """Says that it deletes, and does not."""

    def delete_objects(
        self,
        keys: Iterable[StorageKey],  # noqa: ARG002
        listed: Listed | None = None,  # noqa: ARG002
    ) -> Deleted:
        return super().delete_objects([])


async def test_verifies_that_a_damaged_sidecar_is_gone(
    storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(inference)
    storing.blobs.put(key, b"damaged", content_type="text/plain")
    erasure = await storing.request(inference, scope="input")
    with Keeping(settings) as keeping:
        assert await storing.make_eraser(keeping).finish(erasure) == "failed"
    assert "StillThere" in str((await storing.reload(erasure)).error)
    assert await storing.eraser.finish(erasure) == "deleted"
    assert storing.objects() == {"answer"}


@pytest.fixture
def user(minio_server: S3) -> MinioUser:
    return MinioUser(minio_server, unique("user"))


@pytest.fixture
def refused(settings: RetentionSettings, user: MinioUser) -> Iterator[Blobs]:
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    with Blobs(RetentionSettings.model_validate(settings.model_dump() | keys)) as opened:
        yield opened


@pytest.mark.parametrize("action", ["GetObject", "PutObject"])
@pytest.mark.parametrize("sidecar", [False, True], ids=["metadata", "sidecar"])
async def test_a_refused_object_keeps_its_mark_alone(
    storing: Storing, user: MinioUser, refused: Blobs, action: str, sidecar: bool
) -> None:
    first, second = await storing.inferences(await storing.model(), 2, ago(days=1))
    key = await storing.sidecar(first) if sidecar else first.objects[2]
    bucket = storing.bucket
    user.may(
        statement("Allow", ["*"], bucket, f"{bucket}/*"),
        statement("Deny", [action], f"{bucket}/{key.key}"),
    )
    erasure = await storing.request(first, second, scope="input")
    theirs = storing.make_eraser(refused, batch=1)
    assert await theirs.finish(erasure) == "failed"
    reloaded = await storing.reload(erasure)
    assert f"{key}: AccessDenied" in str(reloaded.error)
    assert reloaded.inferences == 1
    assert b"request" not in storing.blobs.get(second.objects[2], limit=1000)
    assert await storing.eraser.finish(erasure) == "deleted"  # with the right it lacked
    assert (await storing.reload(erasure)).inferences == 2


async def test_a_bucket_that_is_allowed_no_more_keeps_its_mark(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    model = await storing.model()
    first = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(first)
    (second,) = await storing.inferences(model, 1, ago(hours=1))
    erasures = [await storing.request(inference, scope="input") for inference in (first, second)]
    elsewhere = {"s3_bucket": minio_server.create_bucket(unique())}
    with Blobs(RetentionSettings.model_validate(settings.model_dump() | elsewhere)) as strange:
        assert await storing.make_eraser(strange).finish(erasures[0]) == "failed"
    assert f"{key}: BucketNotAllowed" in str((await storing.reload(erasures[0])).error)
    assert [await storing.eraser.finish(erasure) for erasure in erasures] == ["deleted", "deleted"]
