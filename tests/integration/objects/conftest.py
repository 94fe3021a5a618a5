"""Fixtures that run the same tests with every S3 server that the store is known to work with."""

from collections.abc import Iterator

import pytest

from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings
from tests.servers.embedded import EmbeddedS3
from tests.servers.fixtures import unique
from tests.servers.minio import S3


@pytest.fixture(scope="session")
def rclone_server() -> Iterator[S3]:
    with EmbeddedS3() as server:
        yield server


@pytest.fixture(params=["minio_server", "rclone_server"])
def s3(request: pytest.FixtureRequest) -> S3:
    server: S3 = request.getfixturevalue(request.param)
    return server


def make_blob_settings(s3: S3, bucket: str, **changes: object) -> BlobSettings:
    return BlobSettings.model_validate({**s3.settings, "s3_bucket": bucket} | changes)


@pytest.fixture
def blobs(s3: S3) -> Iterator[Blobs]:
    with Blobs(make_blob_settings(s3, s3.create_bucket(unique()))) as opened:
        yield opened
