"""A wrong bucket, key or secret is named as such, however the object store writes its refusals."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from inference_store.index.database import create_engine
from inference_store.operations.doctor.finding import DoctorSettings, Finding, State, Subject
from inference_store.operations.doctor.object_store import check_buckets
from tests.servers.minio import S3
from tests.settings import make_settings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_with(**changes: Any) -> Finding:
    settings = make_settings(DoctorSettings, **changes)
    (finding,) = asyncio.run(
        check_buckets(Subject(settings, create_engine("postgresql://nobody/none")))
    )
    return finding


@pytest.fixture(scope="module")
def rclone() -> Iterator[S3]:
    """The demo's object store, with the bucket `there`. It calls its XML `text/xml`."""
    pytest.importorskip("confluent_kafka", reason="the demo's packages are not installed")
    from tests.servers.embedded import EmbeddedS3  # noqa: PLC0415

    with EmbeddedS3() as server:
        server.create_bucket("there")
        yield server


@pytest.mark.parametrize(
    ("wrong", "sentence", "remedy"),
    [
        ({"s3_bucket": "gone"}, "gone: there is no such bucket (NoSuchBucket", "S3_BUCKET"),
        ({"s3_access_key": "x"}, "there: the access key is not known (Inv", "S3_ACCESS_KEY"),
        ({"s3_secret_key": "x" * 32}, "there: the secret key is wrong (Sign", "S3_SECRET_KEY"),
    ],
)
def test_on_the_demos_store(wrong: dict[str, str], sentence: str, remedy: str, rclone: S3) -> None:
    keys = {"s3_access_key": rclone.access_key, "s3_secret_key": rclone.secret_key}
    right = {"s3_endpoint": rclone.endpoint, "s3_bucket": "there", **keys}
    assert check_with(**right).state is State.OK
    finding = check_with(**(right | wrong))
    assert finding.state is State.FAILED
    assert finding.seen.startswith(sentence)
    assert f"INFERENCE_STORE_{remedy}" in finding.remedy


@contextmanager
def serve_answer(status: int, body: bytes, kind: str | None) -> Iterator[str]:
    """The URL of a server that answers all alike."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if kind is not None:
                self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"


@pytest.mark.parametrize("kind", ["application/xml", "text/xml; charset=utf-8", "text/plain", None])
def test_accepts_any_content_type(kind: str | None) -> None:
    with serve_answer(404, _NO_BUCKET, kind) as endpoint:
        finding = check_with(s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b" * 16)
    assert finding.seen.startswith("inference-store: there is no such bucket (NoSuchBucket: none)")


@pytest.mark.parametrize("body", [b"", b"<html>nginx</html>"])
def test_reports_a_server_that_is_not_s3(body: bytes) -> None:
    with serve_answer(404, body, "text/html") as endpoint:
        finding = check_with(s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b" * 16)
    assert "what answers is no S3 server" in finding.seen
    assert "INFERENCE_STORE_S3_ENDPOINT" in finding.remedy


@pytest.mark.parametrize("name", ["s3://there", "a/b", "Bad_Bucket!", "ab", "10.0.0.1"])
def test_a_name_that_no_bucket_can_have_is_not_a_server_that_is_away(name: str) -> None:
    finding = check_with(s3_endpoint="http://127.0.0.1:1", s3_bucket=name)
    assert finding.state is State.FAILED
    assert finding.seen.startswith(f"{name}: no bucket can have this name (InvalidBucketName")
    assert "INFERENCE_STORE_S3_BUCKET" in finding.remedy
