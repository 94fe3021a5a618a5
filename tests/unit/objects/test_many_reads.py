"""Clients of the object store, whom they are to it, and many reads at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import certifi
import pytest
from obstore.exceptions import PermissionDeniedError

from inference_store.inference import errors
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.clients import (
    WebIdentity,
    http_pool,
    minio_client,
    web_identity,
    without_secrets,
)
from inference_store.objects.listing import is_addressable, is_plain
from inference_store.objects.transfers import OVER_BUDGET, Fetched, get_many, translate_error
from inference_store.platform.settings import BlobSettings, WrongSetting
from tests.http_stub import Request, Response, serve_http
from tests.settings import make_settings


def make_blob_settings(**changes: str) -> BlobSettings:
    keys = {"s3_access_key": "key", "s3_secret_key": "secret", "s3_bucket": "ours"}
    return BlobSettings.model_validate(keys | {"s3_endpoint": "http://127.0.0.1:1"} | changes)


def test_nothing_connects_before_the_first_request_and_links_are_public() -> None:
    Blobs(make_blob_settings()).close()
    for endpoint in ("http://host/path", "host:9000"):
        with pytest.raises(ValueError, match="http://host:port"):
            Blobs(make_blob_settings(s3_endpoint=endpoint))
    with Blobs(make_blob_settings(s3_public_endpoint="https://s3.example.com")) as blobs:
        link = blobs.presign(blobs.parse("a b"), 60)
    assert link.startswith("https://s3.example.com/ours/a%20b?")


def test_links_are_signed_as_minio_signs_them() -> None:
    """Also where AWS names the bucket in the host."""
    at, minute = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), timedelta(minutes=1)
    aws = {"s3_endpoint": "https://s3.eu-west-1.amazonaws.com", "s3_region": "eu-west-1"}
    for changes in ({}, aws, aws | {"s3_bucket": "with.dots"}):
        settings = make_blob_settings(**changes)
        sign = minio_client(settings, settings.s3_endpoint).presigned_get_object
        with Blobs(settings) as blobs:
            for name in ("a b+c%~!*'()@&=?é#/x", "a//b", "/lead", "tail/", "_-.", ":,;$[]"):
                key = StorageKey(settings.s3_bucket, name)
                theirs = sign(key.bucket, name, minute, request_date=at)
                assert blobs.presign(key, 60, at=at) == theirs, key


def test_a_bucket_off_the_list_is_refused_by_name() -> None:
    with Blobs(make_blob_settings(s3_allowed_buckets="theirs, third")) as blobs:
        assert str(blobs.parse("a/b")) == "s3://ours/a/b"
        assert str(blobs.parse("s3://third/a")) == "s3://third/a"
        with pytest.raises(ValueError, match="ours, theirs, third"):
            blobs.parse("s3://stranger/a")


def test_clients_share_what_they_trust() -> None:
    own = {"s3_endpoint": "https://127.0.0.1:1", "s3_ca_file": certifi.where()}
    first, second, other = (
        http_pool(make_blob_settings(**fields)).connection_pool_kw["ssl_context"]
        for fields in ({}, {}, own)
    )
    assert first is second
    assert first is not other


CLUSTER = {"AWS_ROLE_ARN": "arn:cluster", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token"}
AWS = "https://sts.us-east-1.amazonaws.com"


def find_identity(variables: dict[str, str], **fields: Any) -> WebIdentity | None:
    return web_identity(make_settings(BlobSettings, **fields), variables)


def test_uses_the_identity_that_a_cluster_injects_or_refuses_half_of_it() -> None:
    ours = WebIdentity("arn:cluster", Path("/var/token"), AWS, "inference-store")
    assert find_identity(CLUSTER) == ours
    china = find_identity(CLUSTER, s3_region="cn-north-1")
    assert china == replace(ours, sts_endpoint="https://sts.cn-north-1.amazonaws.com.cn")

    named = find_identity(CLUSTER | {"AWS_ENDPOINT_URL_STS": "https://sts"})
    assert named == replace(ours, sts_endpoint="https://sts")
    assert find_identity(CLUSTER, s3_access_key="a", s3_secret_key="s") is None
    assert find_identity({}) is None
    with pytest.raises(WrongSetting, match=r"AWS_ROLE_ARN is set and AWS_WEB_ID.* is not"):
        find_identity({"AWS_ROLE_ARN": "r"})
    with pytest.raises(WrongSetting, match=r"must begin with https"):
        find_identity(CLUSTER | {"AWS_ENDPOINT_URL_STS": "http://sts"})
    text = without_secrets("exceeded with url: /?WebIdentityToken=eyJ.abc&X-Amz-Signature=ff (x)")
    assert text == "exceeded with url: /?WebIdentityToken=…&X-Amz-Signature=… (x)"


FAULTS = {
    "missing": errors.BlobMissing,
    "forbidden": errors.BlobForbidden,
    "large": errors.BlobTooLarge,
}
FAULTS |= {"away": errors.ObjectStoreUnavailable}


def make_key(name: str) -> StorageKey:
    return StorageKey("bucket", name)


def fetch(*names: str | None, threads: int = 4, budget: int = 1000) -> list[Fetched]:
    """Get blobs that hold their names, or raise the fault of the name."""

    def get(storage_key: StorageKey) -> bytes:
        if storage_key.key in FAULTS:
            raise FAULTS[storage_key.key](str(storage_key))
        return storage_key.key.encode()

    keys = [None if name is None else make_key(name) for name in names]
    with ThreadPoolExecutor(4) as executor:
        return get_many(executor, get, keys, threads=threads, budget=budget)


def test_results_are_in_the_order_of_the_keys_up_to_a_budget() -> None:
    names = [str(number) for number in range(50)]
    assert fetch(*names) == [name.encode() for name in names]
    assert fetch() == []
    a, none, missing, large, b, forbidden = fetch("a", None, "missing", "large", "b", "forbidden")
    assert (a, none, b) == (b"a", None, b"b")
    assert isinstance(missing, errors.BlobMissing)
    assert isinstance(large, errors.BlobTooLarge)
    assert isinstance(forbidden, errors.BlobForbidden)
    with pytest.raises(errors.ObjectStoreUnavailable):
        fetch("a", "away", "b")
    assert fetch("four", "five5", "six666", threads=1, budget=5) == [b"four", b"five5", OVER_BUDGET]


def test_classifies_errors_of_the_client() -> None:
    for error, meaning in (
        (FileNotFoundError("404 <Code>NoSuchKey</Code>"), errors.BlobMissing),
        (FileNotFoundError("404 <Code>NoSuchBucket</Code>"), errors.ObjectStoreUnavailable),
        (FileNotFoundError("404 <Code>NoSuchVersion</Code>"), errors.BlobMissing),
        (OSError("400 <Code>KeyTooLongError</Code>"), errors.BlobUnreadable),
        (PermissionDeniedError("403 <Code>InvalidObjectState</Code>"), errors.BlobUnreadable),
        (OSError("503 <Code>SlowDown</Code>"), errors.ObjectStoreUnavailable),
        (OSError("connection refused"), errors.ObjectStoreUnavailable),
        (PermissionDeniedError("403 <Code>AccessDenied</Code>"), errors.AccessDenied),
        (ValueError("could not parse path"), errors.BlobMissing),
    ):
        assert type(translate_error(make_key("a"), error)) is meaning, error


# Whatever a storage key says, only our buckets on our own S3 server are ever asked for it.

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


def test_it_is_a_key_in_our_bucket_or_refused(world: World, subtests: pytest.Subtests) -> None:
    refused = r"not allowed|storage key|URL paths resolve"
    for text in REFUSED:
        with subtests.test(text), pytest.raises(ValueError, match=refused):
            world.blobs.parse(text)
    assert world.asked == []
    for text in INSIDE:
        key = world.blobs.parse(text)
        assert key == StorageKey("ours", text)
        world.asked.clear()
        with pytest.raises((errors.BlobMissing, errors.ObjectStoreUnavailable)):
            world.blobs.get(key, limit=10)
        assert world.asked, text
        for host, path in world.asked:
            assert host == world.host, text
            assert unquote(path.split("?")[0]) in {f"/ours/{text}", "/ours", "/ours/"}, text
            assert "versionId" not in urlsplit(path).query, text


async def test_a_bucket_that_is_allowed_no_more_is_not_asked(world: World) -> None:
    """A key that is stored already, of a bucket that was taken off the list since."""
    blobs = world.blobs
    for key in (StorageKey("strangers", "x"), StorageKey("strangers", "a//b")):
        with pytest.raises(errors.ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            blobs.get(key, limit=1)
        with pytest.raises(errors.ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            await blobs.stream(key)
        with pytest.raises(errors.ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
            blobs.put(key, b"x", content_type="text/plain")
        with pytest.raises(errors.BlobMissing, match="S3_ALLOWED_BUCKETS"):
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
