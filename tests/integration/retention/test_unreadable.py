"""Blobs that hold a request and cannot be written again as usual: nothing is said to be gone
that is there still."""

from collections.abc import Iterable, Iterator

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from obstore.exceptions import PermissionDeniedError

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.objects.many_reads import translate_error
from inference_store.platform.settings import RetentionSettings
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement

from .stored import METADATA_BLOB, Storing, ago

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3, bucket: str) -> str:
    """A bucket that keeps versions."""
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    return bucket


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


class Archived(Blobs):
    """Has put every object away, as S3 does: it lists them, and does not give them."""

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        assert super().get(key, limit=limit)
        raise translate_error(key, PermissionDeniedError("403 <Code>InvalidObjectState</Code>"))


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


pytestmark = pytest.mark.real_minio


@pytest.fixture
def user(minio_server: S3) -> MinioUser:
    return MinioUser(minio_server, unique("user"))


@pytest.fixture
def refused(settings: RetentionSettings, user: MinioUser) -> Iterator[Blobs]:
    """The bucket as the user sees it."""
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
