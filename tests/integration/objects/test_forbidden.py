"""One refused object is distinguished from a store that refuses everything."""

from collections.abc import Iterator

import pytest

from inference_store.inference.errors import BlobForbidden, BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.servers.fixtures import unique
from tests.servers.minio import S3, MinioUser, statement

from .conftest import make_blob_settings

pytestmark = pytest.mark.real_minio
# The other client sends the last one.
REFUSED = ["refused/a", "refused/\x7fodd"]
READ = ["GetObject"]


@pytest.fixture
def user(minio_server: S3) -> MinioUser:
    return MinioUser(minio_server, unique("user"))


@pytest.fixture
def filled_bucket(minio_server: S3, bucket: str) -> str:
    """Fill a bucket with an object that may be read and two that may not."""
    with Blobs(make_blob_settings(minio_server, bucket)) as owner:
        for name in ("given", *REFUSED):
            owner.put(owner.parse(name), name.encode(), content_type="text/plain")
    return bucket


@pytest.fixture
def blobs(minio_server: S3, filled_bucket: str, user: MinioUser) -> Iterator[Blobs]:
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    with Blobs(make_blob_settings(minio_server, filled_bucket, **keys)) as opened:
        yield opened


def refuse_one_prefix(bucket: str) -> list[dict[str, object]]:
    return [
        statement("Allow", ["GetObject"], f"{bucket}/*"),
        statement("Allow", ["ListBucket"], bucket),
        statement("Deny", ["GetObject"], f"{bucket}/refused/*"),
    ]


def parse_keys(blobs: Blobs, *names: str) -> list[StorageKey]:
    return [blobs.parse(name) for name in names]


def test_distinguishes_refused_objects(
    minio_server: S3, blobs: Blobs, user: MinioUser, filled_bucket: str
) -> None:
    user.may(*refuse_one_prefix(filled_bucket))
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    for name in REFUSED:
        with Blobs(make_blob_settings(minio_server, filled_bucket, **keys)) as fresh:
            # before anything was read
            (alone,) = fresh.get_many(parse_keys(fresh, name), limit=100)
            assert isinstance(alone, BlobForbidden)
        results = blobs.get_many(parse_keys(blobs, name, "given", "nothing"), limit=100)
        assert isinstance(results[0], BlobForbidden), results
        assert name in str(results[0])
        assert results[1] == b"given"
        assert isinstance(results[2], BlobMissing)
        with pytest.raises(ObjectStoreUnavailable):
            blobs.get(blobs.parse(name), limit=100)


def test_uses_an_object_read_before_if_listing_is_refused(
    blobs: Blobs, user: MinioUser, filled_bucket: str
) -> None:
    user.may(statement("Allow", READ, f"{filled_bucket}/given"))
    with pytest.raises(ObjectStoreUnavailable):
        blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)
    assert blobs.get_many(parse_keys(blobs, "given"), limit=100) == [b"given"]
    (alone,) = blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)


def test_one_object_may_be_refused_after_it_was_read_or_the_whole_bucket(
    blobs: Blobs, user: MinioUser, filled_bucket: str
) -> None:
    """The whole bucket is an unavailable store, though it answers itself."""
    refuse, *allow = refuse_one_prefix(filled_bucket)[::-1]
    user.may(*allow)
    for name in ("given", REFUSED[0]):
        assert blobs.get_many(parse_keys(blobs, name), limit=100) == [name.encode()]
    user.may(*allow, refuse)
    (alone,) = blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)
    user.may(statement("Allow", ["ListBucket"], filled_bucket))
    blobs.check()
    of_both_clients = [some for name in REFUSED for some in ((name,), ("given", name, "nothing"))]
    for names in (*of_both_clients, ("given",)):
        with pytest.raises(ObjectStoreUnavailable):
            blobs.get_many(parse_keys(blobs, *names), limit=100)


def test_refused_objects_are_unavailable(blobs: Blobs, user: MinioUser, filled_bucket: str) -> None:
    """With a disabled SSE-KMS key: 403 for every object, 404 for missing ones."""
    user.may(*refuse_one_prefix(filled_bucket))
    assert blobs.get_many(parse_keys(blobs, "given"), limit=100) == [b"given"]
    not_there = statement("Allow", READ, f"{filled_bucket}/inference-store-asks-*")
    user.may(not_there, statement("Allow", ["ListBucket"], filled_bucket))
    with pytest.raises(ObjectStoreUnavailable):
        blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)
    with pytest.raises(ObjectStoreUnavailable):
        blobs.get_many(parse_keys(blobs, "given"), limit=100)


def test_deleted_object_is_no_evidence(
    minio_server: S3, blobs: Blobs, user: MinioUser, filled_bucket: str
) -> None:
    user.may(*refuse_one_prefix(filled_bucket))
    assert blobs.get_many(parse_keys(blobs, "given"), limit=100) == [b"given"]
    with Blobs(make_blob_settings(minio_server, filled_bucket)) as owner:
        assert not owner.delete_objects(parse_keys(owner, "given"))
    (alone,) = blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)
    user.may(statement("Allow", ["ListBucket"], filled_bucket))
    with pytest.raises(ObjectStoreUnavailable):
        blobs.get_many(parse_keys(blobs, REFUSED[0]), limit=100)


def test_wrong_credentials_are_an_unavailable_store(minio_server: S3, filled_bucket: str) -> None:
    for wrong in ({"s3_secret_key": "wrong"}, {"s3_access_key": "nobody"}):
        with Blobs(make_blob_settings(minio_server, filled_bucket, **wrong)) as stranger:
            for names in [some for name in REFUSED for some in ((name,), ("given", name))]:
                with pytest.raises(ObjectStoreUnavailable):
                    stranger.get_many(parse_keys(stranger, *names), limit=100)
