"""Identities for the object store: keys, a web identity by setting, or one a cluster injects."""

from pathlib import Path
from typing import Any

import pytest

from inference_store.objects.clients import without_secrets
from inference_store.objects.identity import WebIdentity, web_identity
from inference_store.platform.settings import BlobSettings, WrongSetting
from tests.settings import make_settings

CLUSTER = {"AWS_ROLE_ARN": "arn:cluster", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token"}
AWS = "https://sts.us-east-1.amazonaws.com"


def make_blob_settings(**fields: Any) -> BlobSettings:
    return make_settings(BlobSettings, **fields)


def test_uses_the_identity_that_a_cluster_injects() -> None:
    identity = web_identity(make_blob_settings(), CLUSTER)
    assert identity == WebIdentity("arn:cluster", Path("/var/token"), AWS, "inference-store")


def test_settings_come_first(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    with_roles = make_blob_settings(
        s3_role_arn="arn:ours", s3_web_identity_token_file=token, s3_sts_endpoint="https://sts"
    )
    assert web_identity(with_roles, CLUSTER) == WebIdentity(
        "arn:ours", token, "https://sts", "inference-store"
    )


def test_keys_win_over_what_a_cluster_injects() -> None:
    assert web_identity(make_blob_settings(s3_access_key="a", s3_secret_key="s"), CLUSTER) is None


def test_nothing_given_is_no_identity() -> None:
    assert web_identity(make_blob_settings(), {}) is None


def test_half_an_identity_is_refused() -> None:
    with pytest.raises(WrongSetting, match=r"is given and INFERENCE_STORE_S3_WEB_ID.* is not"):
        web_identity(make_blob_settings(s3_role_arn="r"), {})


def test_china_has_an_address_of_its_own() -> None:
    identity = web_identity(make_blob_settings(s3_region="cn-north-1"), CLUSTER)
    assert identity is not None
    assert identity.sts_endpoint == "https://sts.cn-north-1.amazonaws.com.cn"


def test_no_token_is_printed() -> None:
    text = without_secrets("exceeded with url: /?WebIdentityToken=eyJ.abc&X-Amz-Signature=ff (x)")
    assert text == "exceeded with url: /?WebIdentityToken=…&X-Amz-Signature=… (x)"
