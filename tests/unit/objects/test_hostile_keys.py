"""Whatever a storage key says, only our buckets on our own S3 server are ever asked for it."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from inference_store.inference.errors import BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.listing import is_addressable, is_plain
from inference_store.platform.settings import BlobSettings
from tests.http_stub import Request, Response, serve_http

INSIDE = (
    *("http://169.254.169.254/latest/meta-data/", "https://strangers.example/x"),
    *("file:///etc/passwd", "S3://strangers/x", "//strangers.example/x", "/strangers/x"),
    *("x//y", "x/", "%2e%2e/%2e%2e/strangers/x", "..%2fstrangers", "%252e%252e/x", "..."),
    *("a\\..\\b", "x?versionId=1&acl", "x#fragment", "user:password@strangers.example"),
    *("x\r\nHost: strangers.example", "\u202ex"),
)
REFUSED = (
    *("s3://strangers/x", "s3:///x", "s3://", "s3://ours", "s3://ours@strangers/x", "s3://OURS/x"),
    *("s3://ours%2f/x", "s3://../ours/x", "..", "../strangers/x", "x/../../strangers/x"),
    *("s3://ours/../strangers/x", "./x", "a\0b", "", "x" * 1025),
)
OWN_KEYS = (
    *("ledger/0000000001", "/ledger/0000000001", "ledger//0000000001"),
    *("s3://ours/ledger/0000000001", "certificates/0000000001.json"),
    "certificates/leaves/x/000001",
)
OTHER_KEYS = ("ledgers/1", "captures/ledger/1", "certificate", "s3://other/ledger/0000000001")


class World(NamedTuple):
    """Our client, the host of its server, and which host and path each request named."""

    blobs: Blobs
    host: str
    asked: list[tuple[str, str]]


@pytest.fixture
def world() -> Iterator[World]:
    asked: list[tuple[str, str]] = []

    def answer(request: Request) -> Response:
        asked.append((request.headers["Host"], request.path))
        return Response(404)

    with serve_http(answer) as endpoint:
        keys = {"s3_access_key": "key", "s3_secret_key": "secret", "s3_bucket": "ours"}
        settings = BlobSettings.model_validate(keys | {"s3_endpoint": endpoint})
        with Blobs(settings) as blobs:
            yield World(blobs, endpoint.removeprefix("http://"), asked)


def test_it_is_a_key_in_our_bucket(world: World) -> None:
    for text in INSIDE:
        key = world.blobs.parse(text)
        assert key == StorageKey("ours", text)
        world.asked.clear()
        with pytest.raises((BlobMissing, ObjectStoreUnavailable)):
            world.blobs.get(key, limit=10)
        assert world.asked, text
        for host, path in world.asked:
            assert host == world.host, text
            assert unquote(path.split("?")[0]) in {f"/ours/{text}", "/ours", "/ours/"}, text
            assert "versionId" not in urlsplit(path).query, text


def test_it_is_refused(world: World, subtests: pytest.Subtests) -> None:
    refused = r"not allowed|storage key|resolved away"
    for text in REFUSED:
        with subtests.test(text), pytest.raises(ValueError, match=refused):
            world.blobs.parse(text)
    assert world.asked == []


async def test_a_bucket_that_is_allowed_no_more_is_not_asked(world: World) -> None:
    """A key that is stored already, of a bucket that was taken off the list since."""
    blobs = world.blobs
    for key in (StorageKey("strangers", "x"), StorageKey("strangers", "a//b")):
        with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            blobs.get(key, limit=1)
        with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            await blobs.stream(key)
        with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            blobs.put(key, b"x", content_type="text/plain")
        with pytest.raises(BlobMissing, match="S3_ALLOWED_BUCKETS"):
            blobs.presign(key, 60)
        assert [fault.code for fault in blobs.delete_objects([key])] == ["BucketNotAllowed"]
    assert world.asked == []


def test_a_plain_key_may_be_carried_by_any_client() -> None:
    for key in ("a", "a/b c", "per%20cent", "ü/😀", "q?x#y", "a;b,c|d"):
        assert (is_plain(key), is_addressable(key)) == (True, True), key
    # an odd key needs the client that spells it exactly
    for key in ("/a", "a/", "a//b", "a\tb", "a\nb", "\x7f", "\ufffe"):
        assert (is_plain(key), is_addressable(key)) == (False, True), key
    # dots are resolved away on the road
    for key in (".", "a/../b", "./a", "a/."):
        assert (is_plain(key), is_addressable(key)) == (False, False), key


def test_no_event_may_name_a_key_of_the_stores_own(subtests: pytest.Subtests) -> None:
    """It could be read by it, and erased with it."""
    fields = {"s3_bucket": "ours", "s3_allowed_buckets": "other"}
    fields |= {"s3_endpoint": "http://127.0.0.1:1"}
    with Blobs(BlobSettings.model_validate(fields)) as blobs:
        for key in OWN_KEYS:
            with subtests.test(key), pytest.raises(ValueError, match="are the store's own"):
                blobs.parse(key)
        for key in OTHER_KEYS:
            assert blobs.parse(key).key == key.removeprefix("s3://other/")
