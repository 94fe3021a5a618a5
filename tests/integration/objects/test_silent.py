"""An S3 that keeps connections and says nothing, as a frozen process does."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import SecretStr

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.settings import BlobSettings

_CALLS = 12


@pytest.mark.parametrize("name", ["get", "check", "put"])
def test_what_waits_behind_a_silence_is_refused_without_asking(name: str) -> None:
    """Two threads wait for one time-out each; without a word to S3, the others wait no longer."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * _CALLS) as silent:
        settings = BlobSettings(
            s3_endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}",
            s3_access_key=SecretStr("key"),
            s3_secret_key=SecretStr("secret"),
            s3_timeout_seconds=1,
        )
        with Blobs(settings) as blobs, ThreadPoolExecutor(2) as threads:
            key = blobs.parse("a")
            arguments: dict[str, Any] = {
                "get": {"key": key, "limit": 1},
                "put": {"key": key, "data": b"", "content_type": "text/plain"},
            }.get(name, {})
            calls = [threads.submit(getattr(blobs, name), **arguments) for _ in range(_CALLS)]
            for call in calls:
                assert isinstance(call.exception(), ObjectStoreUnavailable)
            with pytest.raises(ObjectStoreUnavailable):
                asyncio.run(blobs.stream(key))
        assert _count_connections(silent) < _CALLS


def _count_connections(server: socket.socket) -> int:
    server.setblocking(False)
    count = 0
    try:
        while True:
            server.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count
