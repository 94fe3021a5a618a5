"""One object that is refused is told from a store that refuses everything."""

from collections.abc import Iterator

import pytest

from inference_store.inference.errors import BlobForbidden, BlobMissing, BlobsAway
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.servers.fixtures import unique
from tests.servers.minio import S3
from tests.servers.minio_user import MinioUser, statement
from tests.servers.waiting import wait_until

from .conftest import settings_of

pytestmark = pytest.mark.real_minio
# The last one is carried by the other client.
REFUSED = ["refused/a", "refused/\x7fodd"]
READ = ["GetObject"]


@pytest.fixture
def user(minio_server: S3) -> MinioUser:
    return MinioUser(minio_server, unique("user"))


@pytest.fixture
def filled(minio_server: S3, bucket: str) -> str:
    """A bucket with an object that is given and two that are not."""
    with Blobs(settings_of(minio_server, bucket)) as owner:
        for name in ("given", *REFUSED):
            owner.put(owner.parse(name), name.encode(), content_type="text/plain")
    return bucket


@pytest.fixture
def blobs(minio_server: S3, filled: str, user: MinioUser) -> Iterator[Blobs]:
    """As the user sees the bucket."""
    keys = {"s3_access_key": user.access_key, "s3_secret_key": user.secret_key}
    with Blobs(settings_of(minio_server, filled, **keys)) as made:
        yield made


def one_prefix_refused(bucket: str) -> list[dict[str, object]]:
    return [
        statement("Allow", ["GetObject"], f"{bucket}/*"),
        statement("Allow", ["ListBucket"], bucket),
        statement("Deny", ["GetObject"], f"{bucket}/refused/*"),
    ]


def some(blobs: Blobs, *names: str) -> list[StorageKey]:
    return [blobs.parse(name) for name in names]


@pytest.mark.parametrize("name", REFUSED)
def test_one_object_is_refused(blobs: Blobs, user: MinioUser, filled: str, name: str) -> None:
    user.may(*one_prefix_refused(filled))
    found = blobs.get_many(some(blobs, name, "given", "nothing"), limit=100)
    assert isinstance(found[0], BlobForbidden), found
    assert name in str(found[0])
    assert found[1] == b"given"
    assert isinstance(found[2], BlobMissing)
    # alone as well, and before anything was given
    (alone,) = blobs.get_many(some(blobs, name), limit=100)
    assert isinstance(alone, BlobForbidden)


def test_what_was_given_before_tells_a_refused_object_where_nothing_else_may_be_asked(
    blobs: Blobs, user: MinioUser, filled: str
) -> None:
    user.may(statement("Allow", READ, f"{filled}/given"))
    with pytest.raises(BlobsAway):
        blobs.get_many(some(blobs, REFUSED[0]), limit=100)
    assert blobs.get_many(some(blobs, "given"), limit=100) == [b"given"]
    (alone,) = blobs.get_many(some(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)


@pytest.mark.parametrize("name", REFUSED)
def test_a_policy_over_the_whole_bucket_is_trouble_of_the_store(
    blobs: Blobs, user: MinioUser, filled: str, name: str
) -> None:
    """Also when it came after objects had been given, and while the bucket itself answers."""
    user.may(*one_prefix_refused(filled))
    assert blobs.get_many(some(blobs, "given"), limit=100) == [b"given"]
    user.may(statement("Allow", ["ListBucket"], filled))
    blobs.check()
    for names in ((name,), ("given",), ("given", name, "nothing")):
        with pytest.raises(BlobsAway):
            blobs.get_many(some(blobs, *names), limit=100)


def test_a_store_that_refuses_all_it_has_is_away_though_it_says_what_it_has_not(
    blobs: Blobs, user: MinioUser, filled: str
) -> None:
    """As with a disabled key of SSE-KMS: 403 for every object, 404 for what is not there."""
    user.may(*one_prefix_refused(filled))
    assert blobs.get_many(some(blobs, "given"), limit=100) == [b"given"]
    not_there = statement("Allow", READ, f"{filled}/inference-store-asks-*")
    user.may(not_there, statement("Allow", ["ListBucket"], filled))
    with pytest.raises(BlobsAway):
        blobs.get_many(some(blobs, REFUSED[0]), limit=100)
    with pytest.raises(BlobsAway):
        blobs.get_many(some(blobs, "given"), limit=100)


def test_an_object_refused_alone_after_it_was_given_is_told_by_the_one_given_before(
    blobs: Blobs, user: MinioUser, filled: str
) -> None:
    user.may(statement("Allow", READ, f"{filled}/*"), statement("Allow", ["ListBucket"], filled))
    for name in ("given", REFUSED[0]):
        assert blobs.get_many(some(blobs, name), limit=100) == [name.encode()]
    user.may(*one_prefix_refused(filled))
    (alone,) = blobs.get_many(some(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)


def test_what_was_given_and_is_gone_tells_nothing(
    minio_server: S3, blobs: Blobs, user: MinioUser, filled: str
) -> None:
    user.may(*one_prefix_refused(filled))
    assert blobs.get_many(some(blobs, "given"), limit=100) == [b"given"]
    with Blobs(settings_of(minio_server, filled)) as owner:
        assert not owner.delete_objects(some(owner, "given"))
    (alone,) = blobs.get_many(some(blobs, REFUSED[0]), limit=100)
    assert isinstance(alone, BlobForbidden)
    user.may(statement("Allow", ["ListBucket"], filled))
    with pytest.raises(BlobsAway):
        blobs.get_many(some(blobs, REFUSED[0]), limit=100)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_credentials_are_trouble_of_the_store(
    minio_server: S3, filled: str, name: str
) -> None:
    for wrong in ({"s3_secret_key": "wrong"}, {"s3_access_key": "nobody"}):
        with Blobs(settings_of(minio_server, filled, **wrong)) as stranger:
            for names in ((name,), ("given", name)):
                with pytest.raises(BlobsAway):
                    stranger.get_many(some(stranger, *names), limit=100)


def _answers(blobs: Blobs) -> bool:
    try:
        blobs.check()
    except BlobsAway:
        return False
    return True


def test_a_single_get_waits_for_any_refusal(blobs: Blobs, user: MinioUser, filled: str) -> None:
    user.may(*one_prefix_refused(filled))
    wait_until(lambda: _answers(blobs), seconds=180, what="the bucket")
    for name in REFUSED:
        with pytest.raises(BlobsAway):
            blobs.get(blobs.parse(name), limit=100)
