"""A wrong bucket, key or secret is named as such, however the object store writes its refusals."""

import asyncio
from typing import Any

import pytest

from inference_store.index.database import create_engine
from inference_store.operations.doctor.finding import DoctorSettings, Finding, State, Subject
from inference_store.operations.doctor.kafka import check_topic
from inference_store.operations.doctor.object_store import check_buckets
from tests.http_stub import Request, Response, serve_http
from tests.settings import make_settings

_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
_LISTED = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


def check_with(**changes: Any) -> Finding:
    keys = {"s3_access_key": "a", "s3_secret_key": "b" * 16}
    settings = make_settings(DoctorSettings, **(keys | changes))
    subject = Subject(settings, create_engine("postgresql://nobody/none"))
    (finding,) = asyncio.run(check_buckets(subject))
    return finding


def test_on_the_demos_store() -> None:
    """It calls its XML `text/xml`."""
    pytest.importorskip("confluent_kafka", reason="the demo's packages are not installed")
    from tests.servers.embedded import EmbeddedS3  # noqa: PLC0415

    with EmbeddedS3() as server:
        server.create_bucket("there")
        keys = {"s3_access_key": server.access_key, "s3_secret_key": server.secret_key}
        right = {"s3_endpoint": server.endpoint, "s3_bucket": "there", **keys}
        assert check_with(**right).state is State.OK
        for setting, value, sentence in (
            ("s3_bucket", "gone", "gone: there is no such bucket (NoSuchBucket"),
            ("s3_access_key", "x", "there: the access key is not known (Inv"),
            ("s3_secret_key", "x" * 32, "there: the secret key is wrong (Sign"),
        ):
            finding = check_with(**(right | {setting: value}))
            assert finding.state is State.FAILED, setting
            assert finding.seen.startswith(sentence), setting
            assert f"INFERENCE_STORE_{setting.upper()}" in finding.remedy


def test_accepts_any_content_type() -> None:
    sentence = "inference-store: there is no such bucket (NoSuchBucket: none)"
    for kind in ("application/xml", "text/xml; charset=utf-8", "text/plain", None):
        missing = Response(404, _NO_BUCKET, kind)
        with serve_http(lambda _, missing=missing: missing) as endpoint:  # type: ignore[misc]
            assert check_with(s3_endpoint=endpoint).seen.startswith(sentence), kind


def test_reports_a_server_that_is_not_s3() -> None:
    for body in (b"", b"<html>nginx</html>"):
        page = Response(404, body, "text/html")
        with serve_http(lambda _, page=page: page) as endpoint:  # type: ignore[misc]
            finding = check_with(s3_endpoint=endpoint)
        assert "what answers is no S3 server" in finding.seen, body
        assert "INFERENCE_STORE_S3_ENDPOINT" in finding.remedy, body


def test_a_name_that_no_bucket_can_have_is_not_a_server_that_is_away() -> None:
    for name in ("s3://there", "a/b", "Bad_Bucket!", "ab", "10.0.0.1"):
        finding = check_with(s3_endpoint="http://127.0.0.1:1", s3_bucket=name)
        assert finding.state is State.FAILED, name
        sentence = f"{name}: no bucket can have this name (InvalidBucketName"
        assert finding.seen.startswith(sentence)
        assert "INFERENCE_STORE_S3_BUCKET" in finding.remedy, name


def check_refusing(*refused: str) -> Finding:
    """Return the finding of an object store that denies queries with one of these words."""

    def answer(request: Request) -> Response:
        if any(word in request.path for word in refused):
            return Response(403, _DENIED)
        if "versioning" in request.path:
            return Response(body=b"<VersioningConfiguration/>")
        if "object-lock" in request.path:
            return Response(body=b"<ObjectLockConfiguration/>")
        return Response(body=_LISTED)

    with serve_http(answer) as endpoint:
        return check_with(s3_endpoint=endpoint)


def test_warns_about_settings_it_may_not_read() -> None:
    versioning, lock = "s3:GetBucketVersioning", "s3:GetBucketObjectLockConfiguration"
    for refused, rights in (
        (["versioning"], versioning),
        (["object-lock"], lock),
        (["versioning", "object-lock"], f"{lock} and {versioning}"),
    ):
        finding = check_refusing(*refused)
        assert (finding.state, finding.remedy) == (State.WARNING, f"Grant {rights}.")
    finding = check_refusing("list-type")
    assert finding.state is State.FAILED, "it may not be listed"
    assert "AccessDenied" in finding.seen


async def test_on_the_demos_broker() -> None:
    """It tells no settings of topics."""
    pytest.importorskip("confluent_kafka", reason="the demo's packages are not installed")
    from tests.servers.embedded import EmbeddedKafka  # noqa: PLC0415

    with EmbeddedKafka() as kafka:
        kafka.create_topic("there", partitions=3)
        findings = []
        for topic in ("there", "missing", "missing"):  # the first question must not make it
            servers = {"kafka_bootstrap_servers": kafka.bootstrap_servers, "kafka_topic": topic}
            settings = make_settings(DoctorSettings, **servers)
            engine = create_engine("postgresql://nobody/none")
            findings += await check_topic(Subject(settings, engine))
    there, *missing = findings
    assert (there.state, there.remedy) == (State.OK, "")
    assert there.seen.startswith("3 partitions, 1 replica; its settings are not reported")
    assert len(missing) == 2
    for finding in missing:
        assert (finding.state, finding.seen) == (State.FAILED, "there is no topic 'missing'")
        assert "--create --topic missing" in finding.remedy
