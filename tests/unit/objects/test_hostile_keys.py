"""Whatever a storage key says, only our buckets on our own S3 server are ever asked for it."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

from inference_store.inference.errors import BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings

INSIDE = (
    "http://169.254.169.254/latest/meta-data/",
    "https://strangers.example/x",
    "file:///etc/passwd",
    "S3://strangers/x",
    "//strangers.example/x",
    "/strangers/x",
    "x//y",
    "x/",
    "%2e%2e/%2e%2e/strangers/x",
    "..%2fstrangers",
    "%252e%252e/x",
    "...",
    "a\\..\\b",
    "x?versionId=1&acl",
    "x#fragment",
    "user:password@strangers.example",
    "x\r\nHost: strangers.example",
    "\u202e\u0000".replace("\u0000", "x"),
)
REFUSED = (
    "s3://strangers/x",
    "s3:///x",
    "s3://",
    "s3://ours",
    "s3://ours@strangers/x",
    "s3://OURS/x",
    "s3://ours%2f/x",
    "s3://../ours/x",
    "..",
    "../strangers/x",
    "x/../../strangers/x",
    "s3://ours/../strangers/x",
    "./x",
    "a\0b",
    "",
    "x" * 1025,
)


class Server(ThreadingHTTPServer):
    """Notes which host and path every request names, and has nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.headers["Host"], self.path))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Tests read no access log."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def blobs(server: Server) -> Iterator[Blobs]:
    fields = {
        "s3_endpoint": f"http://127.0.0.1:{server.server_port}",
        "s3_access_key": "key",
        "s3_secret_key": "secret",
        "s3_bucket": "ours",
    }
    with Blobs(BlobSettings.model_validate(fields)) as opened:
        yield opened


@pytest.mark.parametrize("text", INSIDE)
def test_it_is_a_key_in_our_bucket(server: Server, blobs: Blobs, text: str) -> None:
    key = blobs.parse(text)
    assert key == StorageKey("ours", text)
    with pytest.raises((BlobMissing, ObjectStoreUnavailable)):
        blobs.get(key, limit=10)
    assert server.requests
    for host, path in server.requests:
        assert host == f"127.0.0.1:{server.server_port}"
        assert unquote(path.split("?")[0]) in {f"/ours/{text}", "/ours", "/ours/"}
        assert "versionId" not in urlsplit(path).query


@pytest.mark.parametrize("text", REFUSED)
def test_it_is_refused(server: Server, blobs: Blobs, text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|storage key|resolved away"):
        blobs.parse(text)
    assert server.requests == []


@pytest.mark.parametrize("name", ["x", "a//b"])
async def test_a_bucket_that_is_allowed_no_more_is_not_asked(
    server: Server, blobs: Blobs, name: str
) -> None:
    """A key that is stored already, of a bucket that was taken off the list since."""
    key = StorageKey("strangers", name)
    with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
        blobs.get(key, limit=1)
    with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
        await blobs.stream(key)
    with pytest.raises(ObjectStoreUnavailable, match="S3_ALLOWED_BUCKETS"):
        blobs.put(key, b"x", content_type="text/plain")
    with pytest.raises(BlobMissing, match="S3_ALLOWED_BUCKETS"):
        blobs.presign(key, 60)
    assert [fault.code for fault in blobs.delete_objects([key])] == ["BucketNotAllowed"]
    assert server.requests == []
