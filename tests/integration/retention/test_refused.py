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
from .test_erasures import found, request

pytestmark = pytest.mark.real_minio


@pytest.fixture
def user(minio_server: S3) -> MinioUser:
    return MinioUser(minio_server, unique("user"))


@pytest.fixture
def refused(settings: RetentionSettings, user: MinioUser) -> Iterator[Blobs]:
    """The bucket as the user sees it."""
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    with Blobs(RetentionSettings.model_validate(settings.model_dump() | keys)) as made:
        yield made


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
    one, other = await storing.inferences(await storing.model(), 2, ago(days=1))
    key = await storing.sidecar(one) if sidecar else one.objects[2]
    bucket = storing.bucket
    user.may(
        statement("Allow", ["*"], bucket, f"{bucket}/*"),
        statement("Deny", [action], f"{bucket}/{key.key}"),
    )
    asked = await request(engine, one, other, scope="input")
    theirs = Eraser(engine, refused, NoPace(), batch=1)
    assert await theirs.finish(asked) == "failed"
    left = await found(engine, asked)
    assert f"{key}: AccessDenied" in str(left.error)
    assert left.inferences == 1
    assert b"request" not in storing.blobs.get(other.objects[2], limit=1000)
    assert await eraser.finish(asked) == "deleted"  # with the right it lacked
    assert (await found(engine, asked)).inferences == 2


async def test_a_bucket_that_is_allowed_no_more_keeps_its_mark(
    storing: Storing,
    engine: AsyncEngine,
    settings: RetentionSettings,
    minio_server: S3,
    eraser: Eraser,
) -> None:
    model = await storing.model()
    one = await storing.foreign(model, ago(days=1), None, "answer", None)
    key = await storing.sidecar(one)
    (other,) = await storing.inferences(model, 1, ago(hours=1))
    asked = [await request(engine, each, scope="input") for each in (one, other)]
    elsewhere = {"s3_bucket": minio_server.create_bucket(unique())}
    with Blobs(RetentionSettings.model_validate(settings.model_dump() | elsewhere)) as strange:
        assert await Eraser(engine, strange, NoPace(), batch=10).finish(asked[0]) == "failed"
    assert f"{key}: BucketNotAllowed" in str((await found(engine, asked[0])).error)
    assert [await eraser.finish(each) for each in asked] == ["deleted", "deleted"]
