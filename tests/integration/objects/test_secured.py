"""The object store over https, with encryption, and with a web identity."""

from pathlib import Path
from typing import Any

import pytest
import urllib3

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings
from tests.servers.certificates import Authority
from tests.servers.fixtures import unique
from tests.servers.issuer import Issuer
from tests.servers.secured import SecuredMinio

pytestmark = pytest.mark.real_minio
# The other client sends the second: see keys.is_plain.
NAMES = ("plain", "a\tb")


@pytest.fixture
def bucket_settings(secured_minio: SecuredMinio, authority: Authority) -> dict[str, Any]:
    """Return settings for a new bucket, without credentials."""
    return {
        "s3_endpoint": secured_minio.endpoint,
        "s3_ca_file": authority.ca_file,
        "s3_bucket": secured_minio.create_bucket(unique()),
        "s3_timeout_seconds": 30,
    }


@pytest.fixture
def key_settings(secured_minio: SecuredMinio) -> dict[str, Any]:
    """Return credentials by keys."""
    return {"s3_access_key": secured_minio.access_key, "s3_secret_key": secured_minio.secret_key}


@pytest.fixture
def identity_settings(
    secured_minio: SecuredMinio, issuer: Issuer, tmp_path: Path
) -> dict[str, Any]:
    """Return credentials by a web identity."""
    token = tmp_path / "token"
    token.write_text(issuer.token())
    return {
        "s3_role_arn": secured_minio.role,
        "s3_web_identity_token_file": token,
        "s3_sts_endpoint": secured_minio.endpoint,
    }


def open_blobs(*parts: dict[str, Any]) -> Blobs:
    settings: dict[str, Any] = {}
    for part in parts:
        settings |= part
    return Blobs(BlobSettings.model_validate(settings))


def check_round_trip(blobs: Blobs, name: str, authority: Authority) -> StorageKey:
    """Check every kind of request, by the client that the name needs; return the key."""
    key = blobs.parse(name)
    blobs.check()
    blobs.put(key, b"hello", content_type="text/plain")
    assert blobs.get(key, limit=5) == b"hello"
    assert blobs.head(key) == 5
    http = urllib3.PoolManager(ca_certs=str(authority.ca_file))
    assert http.request("GET", blobs.presign(key, 60)).data == b"hello"
    return key


@pytest.mark.parametrize("name", NAMES)
def test_authenticates_by_keys(
    bucket_settings: dict[str, Any], key_settings: dict[str, Any], authority: Authority, name: str
) -> None:
    with open_blobs(bucket_settings, key_settings) as blobs:
        key = check_round_trip(blobs, name, authority)
        assert blobs.delete_objects([key]) == []
        assert blobs.still_there([key]) == []


@pytest.mark.parametrize("name", NAMES)
def test_authenticates_by_web_identity(
    bucket_settings: dict[str, Any],
    identity_settings: dict[str, Any],
    authority: Authority,
    name: str,
) -> None:
    with open_blobs(bucket_settings, identity_settings) as blobs:
        key = check_round_trip(blobs, name, authority)
        assert blobs.delete_objects([key]) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_strange_certificate_is_named(
    bucket_settings: dict[str, Any], key_settings: dict[str, Any], stranger: Authority, name: str
) -> None:
    with open_blobs(bucket_settings, key_settings, {"s3_ca_file": stranger.ca_file}) as blobs:
        with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
            blobs.get(blobs.parse(name), limit=1)
        with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
            blobs.check()


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_token_is_never_shown(
    bucket_settings: dict[str, Any], identity_settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with Issuer() as stranger:
        forged = stranger.token()
    (tmp_path / "token").write_text(forged)
    unreachable = {"s3_sts_endpoint": "https://localhost:1"}
    for more in ({}, unreachable):
        with open_blobs(bucket_settings, identity_settings, more) as blobs:
            with pytest.raises(ObjectStoreUnavailable) as refused:
                blobs.get(blobs.parse(name), limit=1)
            assert forged not in str(refused.value)
            assert forged.split(".")[2] not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("encryption", "header", "key_id"),
    [("SSE-S3", "AES256", None), ("SSE-KMS", "aws:kms", "tests")],
)
def test_what_is_written_is_encrypted(
    bucket_settings: dict[str, Any],
    key_settings: dict[str, Any],
    secured_minio: SecuredMinio,
    name: str,
    encryption: str,
    header: str,
    key_id: str | None,
) -> None:
    with open_blobs(
        bucket_settings, key_settings, {"s3_encryption": encryption, "s3_kms_key_id": key_id}
    ) as blobs:
        key = blobs.parse(name)
        blobs.put(key, b"before", content_type="text/plain")
        assert blobs.replace(key, b"hello", content_type="text/plain") == []
        assert blobs.get(key, limit=5) == b"hello"
        headers = secured_minio.client().stat_object(key.bucket, key.key).metadata or {}
    assert headers["x-amz-server-side-encryption"] == header
    key_header = headers.get("x-amz-server-side-encryption-aws-kms-key-id")
    assert (key_header or "").removeprefix("arn:aws:kms:") == (key_id or "")


def test_does_not_encrypt_by_default(
    bucket_settings: dict[str, Any], key_settings: dict[str, Any], secured_minio: SecuredMinio
) -> None:
    with open_blobs(bucket_settings, key_settings) as blobs:
        key = blobs.parse("plain")
        blobs.put(key, b"hello", content_type="text/plain")
    headers = secured_minio.client().stat_object(key.bucket, key.key).metadata or {}
    assert "x-amz-server-side-encryption" not in headers


def test_unknown_kms_key_is_an_unavailable_store(
    bucket_settings: dict[str, Any], key_settings: dict[str, Any]
) -> None:
    with open_blobs(
        bucket_settings, key_settings, {"s3_encryption": "SSE-KMS", "s3_kms_key_id": "none"}
    ) as blobs:
        for name in NAMES:
            with pytest.raises(ObjectStoreUnavailable):
                blobs.put(blobs.parse(name), b"x", content_type="text/plain")
