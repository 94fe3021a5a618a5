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
from inference_store.objects.many_reads import translate_error
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.servers.minio import S3

from .conftest import NoPace
from .stored import METADATA_BLOB, Storing, ago
from .test_erasures import reload_erasure, request

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
    storing: Storing, engine: AsyncEngine, eraser: Eraser, minio_server: S3, sidecar: bool
) -> None:
    (inference,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    key = await storing.sidecar(inference) if sidecar else inference.objects[2]
    storing.blobs.put(key, METADATA_BLOB, content_type="application/json")
    minio_server.client().remove_object(key.bucket, key.key)
    assert len(list_delete_markers(minio_server, key)) > 1
    assert await eraser.finish(await request(engine, inference, scope="input")) == "deleted"
    assert list_delete_markers(minio_server, key) == [True]
    # nothing is left to do if only the marker is there
    assert storing.blobs.delete_hidden(key) == []
    assert await eraser.finish(await request(engine, inference)) == "deleted"
    assert list_delete_markers(minio_server, key) == []


class Archived(Blobs):
    """Has put every object away, as S3 does: it lists them, and does not give them."""

    def get(self, key: StorageKey, *, limit: int) -> bytes:
        assert super().get(key, limit=limit)
        raise translate_error(key, PermissionDeniedError("403 <Code>InvalidObjectState</Code>"))


async def test_does_not_report_an_archived_blob_as_rewritten(
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings, eraser: Eraser
) -> None:
    (inference,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    erasure = await request(engine, inference, scope="input")
    with Archived(settings) as archived:
        assert await Eraser(engine, archived, NoPace(), batch=10).finish(erasure) == "failed"
    error_text = str((await reload_erasure(engine, erasure)).error)
    assert "NotRewritten" in error_text
    assert "InvalidObjectState" in error_text
    assert inference.objects[2].key in storing.objects()
    assert await eraser.finish(erasure) == "deleted"  # restored
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
    storing: Storing, engine: AsyncEngine, settings: RetentionSettings, eraser: Eraser
) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(inference)
    storing.blobs.put(key, b"damaged", content_type="text/plain")
    erasure = await request(engine, inference, scope="input")
    with Keeping(settings) as keeping:
        assert await Eraser(engine, keeping, NoPace(), batch=10).finish(erasure) == "failed"
    assert "StillThere" in str((await reload_erasure(engine, erasure)).error)
    assert await eraser.finish(erasure) == "deleted"
    assert storing.objects() == {"answer"}
