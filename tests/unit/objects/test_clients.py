import certifi
import pytest

from inference_store.objects import Blobs
from inference_store.objects.clients import http_pool
from inference_store.platform.settings import BlobSettings


def make_blob_settings(**changes: str) -> BlobSettings:
    return BlobSettings.model_validate(
        {
            "s3_endpoint": "http://127.0.0.1:1",
            "s3_access_key": "key",
            "s3_secret_key": "secret",
        }
        | changes
    )


def test_nothing_connects_before_the_first_request() -> None:
    Blobs(make_blob_settings()).close()


def test_an_endpoint_with_a_path_or_no_scheme_is_refused(subtests: pytest.Subtests) -> None:
    for endpoint in ("http://host/path", "host:9000"):
        with subtests.test(endpoint), pytest.raises(ValueError, match="http://host:port"):
            Blobs(make_blob_settings(s3_endpoint=endpoint))


def test_a_bucket_off_the_list_is_refused_by_name() -> None:
    with Blobs(make_blob_settings(s3_bucket="ours", s3_allowed_buckets="theirs, third")) as blobs:
        assert str(blobs.parse("a/b")) == "s3://ours/a/b"
        assert str(blobs.parse("s3://third/a")) == "s3://third/a"
        with pytest.raises(ValueError, match="ours, theirs, third"):
            blobs.parse("s3://stranger/a")


def test_a_link_points_to_where_clients_are() -> None:
    with Blobs(
        make_blob_settings(s3_public_endpoint="https://s3.example.com", s3_bucket="ours")
    ) as blobs:
        assert blobs.presign(blobs.parse("a b"), 60).startswith(
            "https://s3.example.com/ours/a%20b?"
        )


def test_clients_share_what_they_trust() -> None:
    own = {"s3_endpoint": "https://127.0.0.1:1", "s3_ca_file": certifi.where()}
    first, second, other = (
        http_pool(make_blob_settings(**fields)).connection_pool_kw["ssl_context"]
        for fields in ({}, {}, own)
    )
    assert first is second
    assert first is not other
