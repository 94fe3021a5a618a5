"""An object with a Content-Encoding is read as it is stored, without unpacking."""

import gzip
from io import BytesIO

import pytest

from inference_store.inference.errors import BlobTooLarge
from inference_store.objects import Blobs
from tests.servers.fixtures import unique
from tests.servers.minio import S3

from .conftest import make_blob_settings

BOMB = gzip.compress(b"\0" * 20_000_000)


@pytest.mark.real_minio
async def test_nothing_is_unpacked(minio_server: S3) -> None:
    bucket, client = minio_server.create_bucket(unique()), minio_server.client()
    encoding: dict[str, str | list[str] | tuple[str]] = {"Content-Encoding": "gzip"}
    with Blobs(make_blob_settings(minio_server, bucket)) as blobs:
        for name in ("plain", "a\tb"):  # the other client sends the second one
            client.put_object(bucket, name, BytesIO(BOMB), len(BOMB), metadata=encoding)
            key = blobs.parse(name)
            assert blobs.get(key, limit=len(BOMB)) == BOMB
            stream = await blobs.stream(key)
            assert b"".join([piece async for piece in stream.pieces]) == BOMB
            assert stream.size == len(BOMB)
            with pytest.raises(BlobTooLarge):
                blobs.get(key, limit=len(BOMB) - 1)
