"""Clients of the object store, whom they are to it, and many reads at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest
from obstore.exceptions import PermissionDeniedError

from inference_store.inference.errors import (
    AccessDenied,
    BlobForbidden,
    BlobMissing,
    BlobTooLarge,
    BlobUnreadable,
    ObjectStoreUnavailable,
)
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.objects.clients import WebIdentity, http_pool, web_identity, without_secrets
from inference_store.objects.transfers import OVER_BUDGET, Fetched, get_many, translate_error
from inference_store.platform.settings import BlobSettings, WrongSetting
from tests.settings import make_settings


def make_blob_settings(**changes: str) -> BlobSettings:
    keys = {"s3_access_key": "key", "s3_secret_key": "secret", "s3_bucket": "ours"}
    return BlobSettings.model_validate(keys | {"s3_endpoint": "http://127.0.0.1:1"} | changes)


def test_nothing_connects_before_the_first_request() -> None:
    Blobs(make_blob_settings()).close()
    for endpoint in ("http://host/path", "host:9000"):
        with pytest.raises(ValueError, match="http://host:port"):
            Blobs(make_blob_settings(s3_endpoint=endpoint))


def test_a_bucket_off_the_list_is_refused_by_name() -> None:
    with Blobs(make_blob_settings(s3_allowed_buckets="theirs, third")) as blobs:
        assert str(blobs.parse("a/b")) == "s3://ours/a/b"
        assert str(blobs.parse("s3://third/a")) == "s3://third/a"
        with pytest.raises(ValueError, match="ours, theirs, third"):
            blobs.parse("s3://stranger/a")


def test_a_link_points_to_where_clients_are() -> None:
    with Blobs(make_blob_settings(s3_public_endpoint="https://s3.example.com")) as blobs:
        link = blobs.presign(blobs.parse("a b"), 60)
    assert link.startswith("https://s3.example.com/ours/a%20b?")


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


def test_uses_the_identity_that_a_cluster_injects() -> None:
    ours = WebIdentity("arn:cluster", Path("/var/token"), AWS, "inference-store")
    assert find_identity(CLUSTER) == ours
    china = find_identity(CLUSTER, s3_region="cn-north-1")
    assert china == replace(ours, sts_endpoint="https://sts.cn-north-1.amazonaws.com.cn")


def test_settings_come_first(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    fields = {"s3_role_arn": "arn:ours", "s3_web_identity_token_file": token}
    identity = find_identity(CLUSTER, s3_sts_endpoint="https://sts", **fields)
    assert identity == WebIdentity("arn:ours", token, "https://sts", "inference-store")
    assert find_identity(CLUSTER, s3_access_key="a", s3_secret_key="s") is None


def test_half_an_identity_is_refused() -> None:
    assert find_identity({}) is None
    with pytest.raises(WrongSetting, match=r"is given and INFERENCE_STORE_S3_WEB_ID.* is not"):
        find_identity({}, s3_role_arn="r")


def test_no_token_is_printed() -> None:
    text = without_secrets("exceeded with url: /?WebIdentityToken=eyJ.abc&X-Amz-Signature=ff (x)")
    assert text == "exceeded with url: /?WebIdentityToken=…&X-Amz-Signature=… (x)"


FAULTS = {"missing": BlobMissing, "forbidden": BlobForbidden, "large": BlobTooLarge}
FAULTS |= {"away": ObjectStoreUnavailable}


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


def test_results_are_in_the_order_of_the_keys() -> None:
    names = [str(number) for number in range(50)]
    assert fetch(*names) == [name.encode() for name in names]
    assert fetch() == []


def test_a_missing_or_too_large_blob_does_not_affect_the_others() -> None:
    a, none, missing, large, b, forbidden = fetch("a", None, "missing", "large", "b", "forbidden")
    assert (a, none, b) == (b"a", None, b"b")
    assert isinstance(missing, BlobMissing)
    assert isinstance(large, BlobTooLarge)
    assert isinstance(forbidden, BlobForbidden)
    with pytest.raises(ObjectStoreUnavailable):
        fetch("a", "away", "b")


def test_nothing_is_asked_for_once_the_budget_is_full() -> None:
    assert fetch("four", "five5", "six666", threads=1, budget=5) == [b"four", b"five5", OVER_BUDGET]


def test_classifies_errors_of_the_client() -> None:
    for error, meaning in (
        (FileNotFoundError("404 <Code>NoSuchKey</Code>"), BlobMissing),
        (FileNotFoundError("404 <Code>NoSuchBucket</Code>"), ObjectStoreUnavailable),
        (FileNotFoundError("404 <Code>NoSuchVersion</Code>"), BlobMissing),
        (OSError("400 <Code>KeyTooLongError</Code>"), BlobUnreadable),
        (PermissionDeniedError("403 <Code>InvalidObjectState</Code>"), BlobUnreadable),
        (OSError("503 <Code>SlowDown</Code>"), ObjectStoreUnavailable),
        (OSError("connection refused"), ObjectStoreUnavailable),
        (PermissionDeniedError("403 <Code>AccessDenied</Code>"), AccessDenied),
        (ValueError("could not parse path"), BlobMissing),
    ):
        assert type(translate_error(make_key("a"), error)) is meaning, error
