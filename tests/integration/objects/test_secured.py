"""The object store over https, with encryption, and with a web identity."""

import os
from pathlib import Path
from typing import Any

import pytest
import urllib3

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings
from tests.servers.certificates import Authority
from tests.servers.fixtures import unique
from tests.servers.issuer import Issuer
from tests.servers.secured import SecuredMinio

pytestmark = pytest.mark.real_minio
# The other client sends the second: see keys.is_plain.
NAMES = ("plain", "a\tb")
Values = dict[str, Any]


@pytest.fixture
def bucket_settings(secured_minio: SecuredMinio, authority: Authority) -> Values:
    """Return settings for a new bucket, without credentials."""
    return {
        "s3_endpoint": secured_minio.endpoint,
        "s3_ca_file": authority.ca_file,
        "s3_bucket": secured_minio.create_bucket(unique()),
        "s3_timeout_seconds": 30,
    }


@pytest.fixture
def key_settings(secured_minio: SecuredMinio) -> Values:
    return {"s3_access_key": secured_minio.access_key, "s3_secret_key": secured_minio.secret_key}


@pytest.fixture
def identity(
    secured_minio: SecuredMinio, issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables by which a cluster gives a pod its identity."""
    token = tmp_path / "token"
    token.write_text(issuer.token())
    monkeypatch.setenv("AWS_ROLE_ARN", secured_minio.role)
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", secured_minio.endpoint)


def open_blobs(*parts: Values) -> Blobs:
    settings: Values = {}
    for part in parts:
        settings |= part
    return Blobs(BlobSettings.model_validate(settings))


def check_round_trip(blobs: Blobs, authority: Authority) -> None:
    """Check every kind of request, by both clients."""
    blobs.check()
    http = urllib3.PoolManager(ca_certs=str(authority.ca_file))
    for name in NAMES:
        key = blobs.parse(name)
        blobs.put(key, b"hello", content_type="text/plain")
        assert blobs.get(key, limit=5) == b"hello"
        assert blobs.head(key) == 5
        assert http.request("GET", blobs.presign(key, 60)).data == b"hello"
        assert blobs.delete_objects([key]) == []
        assert blobs.still_there([key]) == []


@pytest.mark.usefixtures("identity")
def test_authenticates_by_keys_or_web_identity(
    bucket_settings: Values, key_settings: Values, authority: Authority
) -> None:
    for keys in (key_settings, {}):
        with open_blobs(bucket_settings, keys) as blobs:
            check_round_trip(blobs, authority)


def test_a_strange_certificate_and_an_unknown_kms_key_are_named(
    bucket_settings: Values, key_settings: Values, stranger: Authority
) -> None:
    with open_blobs(bucket_settings, key_settings, {"s3_ca_file": stranger.ca_file}) as blobs:
        for name in NAMES:
            with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
                blobs.get(blobs.parse(name), limit=1)
        with pytest.raises(ObjectStoreUnavailable, match=r"(?i)certificate"):
            blobs.check()
    unknown = {"s3_encryption": "SSE-KMS", "s3_kms_key_id": "none"}
    with open_blobs(bucket_settings, key_settings, unknown) as blobs:
        for name in NAMES:
            with pytest.raises(ObjectStoreUnavailable):
                blobs.put(blobs.parse(name), b"x", content_type="text/plain")


@pytest.mark.usefixtures("identity")
def test_a_refused_token_is_never_shown(
    bucket_settings: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Issuer() as stranger:
        forged = stranger.token()
    (tmp_path / "token").write_text(forged)
    for endpoint in (os.environ["AWS_ENDPOINT_URL_STS"], "https://localhost:1"):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        for name in NAMES:
            with open_blobs(bucket_settings) as blobs:
                with pytest.raises(ObjectStoreUnavailable) as refused:
                    blobs.get(blobs.parse(name), limit=1)
                assert forged not in str(refused.value)
                assert forged.split(".")[2] not in str(refused.value)


# Settings, and the headers of what is written with them.
ENCRYPTIONS: tuple[tuple[Values, str | None, str], ...] = (
    ({}, None, ""),
    ({"s3_encryption": "SSE-S3"}, "AES256", ""),
    ({"s3_encryption": "SSE-KMS", "s3_kms_key_id": "tests"}, "aws:kms", "tests"),
)


def test_what_is_written_is_encrypted(
    bucket_settings: Values, key_settings: Values, secured_minio: SecuredMinio
) -> None:
    for encryption, header, key_id in ENCRYPTIONS:
        with open_blobs(bucket_settings, key_settings, encryption) as blobs:
            for name in NAMES:
                key = blobs.parse(name)
                blobs.put(key, b"before", content_type="text/plain")
                assert blobs.replace(key, b"hello", content_type="text/plain") == []
                assert blobs.get(key, limit=5) == b"hello"
                stat = secured_minio.client().stat_object(key.bucket, key.key)
                headers = stat.metadata or {}
                assert headers.get("x-amz-server-side-encryption") == header, encryption
                key_header = headers.get("x-amz-server-side-encryption-aws-kms-key-id") or ""
                assert key_header.removeprefix("arn:aws:kms:") == key_id
