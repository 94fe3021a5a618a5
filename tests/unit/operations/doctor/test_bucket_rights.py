"""A bucket that may be listed and not looked at: a warning with the rights, and no failure."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from inference_store.index.database import create_engine
from inference_store.operations.doctor.finding import DoctorSettings, Finding, State, Subject
from inference_store.operations.doctor.object_store import check_buckets
from tests.settings import make_settings

_LISTED = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def serve_object_store(*refused: str) -> Iterator[str]:
    """Yield the URL of an object store that answers AccessDenied if the query names a `refused`."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            denied = any(word in self.path for word in refused)
            body = _DENIED if denied else _LISTED
            if not denied and "versioning" in self.path:
                body = b"<VersioningConfiguration/>"
            if not denied and "object-lock" in self.path:
                body = b"<ObjectLockConfiguration/>"
            self.send_response(403 if denied else 200)
            self.send_header("Content-Type", "application/xml")
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


def find_findings(endpoint: str) -> list[Finding]:
    settings = make_settings(
        DoctorSettings, s3_endpoint=endpoint, s3_access_key="a", s3_secret_key="b" * 16
    )
    return asyncio.run(check_buckets(Subject(settings, create_engine("postgresql://nobody/none"))))


@pytest.mark.parametrize(
    ("refused", "rights"),
    [
        (["versioning"], "Grant s3:GetBucketVersioning."),
        (["object-lock"], "Grant s3:GetBucketObjectLockConfiguration."),
        (
            ["versioning", "object-lock"],
            "Grant s3:GetBucketObjectLockConfiguration and s3:GetBucketVersioning.",
        ),
    ],
)
def test_warns_about_settings_it_may_not_read(refused: list[str], rights: str) -> None:
    with serve_object_store(*refused) as endpoint:
        (finding,) = find_findings(endpoint)
    assert (finding.state, finding.remedy) == (State.WARNING, rights)


def test_a_bucket_that_may_not_be_listed_fails() -> None:
    with serve_object_store("list-type") as endpoint:
        (finding,) = find_findings(endpoint)
    assert finding.state is State.FAILED
    assert "AccessDenied" in finding.seen
