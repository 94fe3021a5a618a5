"""One object that is refused does not stop what comes behind it."""

from collections.abc import Iterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.objects import Blobs
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.eraser import Eraser
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement

from .conftest import NoPace
from .stored import Storing, ago
from .test_erasures import reload_erasure, request

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
    storing: Storing,
    engine: AsyncEngine,
    user: MinioUser,
    refused: Blobs,
    eraser: Eraser,
    action: str,
    sidecar: bool,
) -> None:
    first, second = await storing.inferences(await storing.model(), 2, ago(days=1))
    key = await storing.sidecar(first) if sidecar else first.objects[2]
    bucket = storing.bucket
    user.may(
        statement("Allow", ["*"], bucket, f"{bucket}/*"),
        statement("Deny", [action], f"{bucket}/{key.key}"),
    )
    erasure = await request(engine, first, second, scope="input")
    theirs = Eraser(engine, refused, NoPace(), batch=1)
    assert await theirs.finish(erasure) == "failed"
    reloaded = await reload_erasure(engine, erasure)
    assert f"{key}: AccessDenied" in str(reloaded.error)
    assert reloaded.inferences == 1
    assert b"request" not in storing.blobs.get(second.objects[2], limit=1000)
    assert await eraser.finish(erasure) == "deleted"  # with the right it lacked
    assert (await reload_erasure(engine, erasure)).inferences == 2


async def test_a_bucket_that_is_allowed_no_more_keeps_its_mark(
    storing: Storing,
    engine: AsyncEngine,
    settings: RetentionSettings,
    minio_server: S3,
    eraser: Eraser,
) -> None:
    model = await storing.model()
    first = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(first)
    (second,) = await storing.inferences(model, 1, ago(hours=1))
    erasures = [await request(engine, inference, scope="input") for inference in (first, second)]
    elsewhere = {"s3_bucket": minio_server.create_bucket(unique())}
    with Blobs(RetentionSettings.model_validate(settings.model_dump() | elsewhere)) as strange:
        assert await Eraser(engine, strange, NoPace(), batch=10).finish(erasures[0]) == "failed"
    assert f"{key}: BucketNotAllowed" in str((await reload_erasure(engine, erasures[0])).error)
    assert [await eraser.finish(erasure) for erasure in erasures] == ["deleted", "deleted"]
