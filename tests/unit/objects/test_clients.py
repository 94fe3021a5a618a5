from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest

from inference_store.objects import Blobs
from inference_store.objects.clients import http_pool, without_secrets
from inference_store.objects.identity import WebIdentity, web_identity
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
