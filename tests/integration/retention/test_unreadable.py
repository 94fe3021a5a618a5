"""Blobs that hold a request and cannot be written again as usual: nothing is said to be gone
that is there still."""

from collections.abc import Iterable

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from obstore.exceptions import PermissionDeniedError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.objects.reading import translated
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.servers.minio import S3

from .conftest import NoPace
from .stored import METADATA_BLOB, Storing, ago
from .test_erasures import found, request

pytestmark = pytest.mark.real_minio


@pytest.fixture
def bucket(minio_server: S3, bucket: str) -> str:
    """One that keeps versions."""
    minio_server.client().set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    return bucket


def versions(s3: S3, key: StorageKey) -> list[bool]:
    """Of each version of the key, whether it is a delete marker."""
    listed = s3.client().list_objects(key.bucket, prefix=key.key, include_version=True)
    return [bool(one.is_delete_marker) for one in listed]


@pytest.mark.parametrize("sidecar", [False, True])
async def test_what_a_delete_marker_hides_goes_too(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3, sidecar: bool
) -> None:
    (one,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    key = await storing.sidecar(one) if sidecar else one.objects[2]
    storing.blobs.put(key, METADATA_BLOB, content_type="application/json")
    minio_server.client().remove_object(key.bucket, key.key)
    assert len(versions(minio_server, key)) > 1
    assert await eraser.finish(await request(engine, one, scope="input")) == "deleted"
    assert versions(minio_server, key) == [True]
    # nothing is left to be done where only the marker is
    assert storing.blobs.delete_hidden(key) == []
    assert await eraser.finish(await request(engine, one)) == "deleted"
    assert versions(minio_server, key) == []


class Archived(Blobs):
    """Has put every object away, as S3 does: it lists them, and does not give them."""

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        assert super().get(key, limit=limit)
        raise translated(key, PermissionDeniedError("403 <Code>InvalidObjectState</Code>"))


async def test_an_archived_blob_is_not_said_to_be_without_its_request(
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings, eraser: Eraser
) -> None:
    (one,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    asked = await request(engine, one, scope="input")
    with Archived(settings) as archived:
        assert await Eraser(engine, archived, NoPace(), batch=10).finish(asked) == "failed"
    told = str((await found(engine, asked)).error)
    assert "NotRewritten" in told
    assert "InvalidObjectState" in told
    assert one.objects[2].key in storing.objects()
    assert await eraser.finish(asked) == "deleted"  # restored
    assert b"request" not in storing.blobs.get(one.objects[2], limit=1000)


def test_an_object_that_is_there_is_no_hidden_one(storing: Storing) -> None:
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


async def test_a_damaged_sidecar_is_seen_to_be_gone(
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings, eraser: Eraser
) -> None:
    model = await storing.model()
    one = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(one)
    storing.blobs.put(key, b"damaged", content_type="text/plain")
    asked = await request(engine, one, scope="input")
    with Keeping(settings) as keeping:
        assert await Eraser(engine, keeping, NoPace(), batch=10).finish(asked) == "failed"
    assert "StillThere" in str((await found(engine, asked)).error)
    assert await eraser.finish(asked) == "deleted"
    assert storing.objects() == {"answer"}
