"""An S3 that keeps connections and says nothing, as a frozen process does."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from tests.servers.minio import S3

from .conftest import make_blob_settings

_CALLS = 12


@pytest.mark.parametrize("client", ["obstore", "minio"])
def test_what_waits_behind_a_silence_is_refused_without_asking(client: str) -> None:
    """Two threads wait for one time-out each; the others wait no longer than that."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * _CALLS) as silent:
        silent.setblocking(False)
        server = S3(f"http://127.0.0.1:{silent.getsockname()[1]}", "key", "secret")
        settings = make_blob_settings(server, "bucket", s3_timeout_seconds=1)
        with Blobs(settings) as blobs, ThreadPoolExecutor(2) as threads:
            key = blobs.parse("a")
            ask = blobs.head if client == "minio" else lambda key: blobs.get(key, limit=1)
            calls = [threads.submit(ask, key) for _ in range(_CALLS)]
            assert {type(call.exception()) for call in calls} == {ObjectStoreUnavailable}
            with pytest.raises(ObjectStoreUnavailable):
                asyncio.run(blobs.stream(key))
        asked = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                asked += 1
        assert asked < _CALLS
