"""Content negotiation: the media type of an answer, and its compression."""

import gzip
import json
from typing import Any

import cramjam
import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, store

from .app_server import serve_app
from .conftest import MakeApp

_PATH = "/v1/models/model/inferences"
_ITEMS = [("frame_number", "int", "9001"), ("data_source", "string", "hallway-camera-feed")]


@pytest.mark.parametrize(
    ("path", "accept", "offered"),
    [
        ("/v1/models", "text/csv", ["application/json"]),
        ("/v1/models", "application/x-ndjson", ["application/json"]),
        ("/v1/certificates/1/leaves", "application/json", ["application/octet-stream"]),
        (_PATH, "text/html, image/*", ["application/json", "application/x-ndjson"]),
        (f"{_PATH}/one/data", "application/json", ["image/jpeg", "application/octet-stream"]),
    ],
)
async def test_rejects_unavailable_type(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    path: str,
    accept: str,
    offered: list[str],
) -> None:
    await _store_picture(engine, blobs, bucket)
    answer = await client.get(path, headers={"Accept": accept})
    assert answer.status_code == 406
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == "/docs/errors#not-acceptable"
    [fault] = problem["errors"]
    assert fault["path"] == "header.accept"
    assert fault["known"][: len(offered)] == offered


@pytest.mark.parametrize("accept", ["image/*", "image/jpeg", "application/octet-stream", "*/*"])
async def test_a_blob_has_its_own_type(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str, accept: str
) -> None:
    await _store_picture(engine, blobs, bucket)
    answer = await client.get(f"{_PATH}/one/data", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/jpeg"


async def _store_picture(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    blobs.put(StorageKey(bucket, "picture"), b"\xff\xd8", content_type="image/jpeg")
    await store(engine, NewInference("one", keys=(f"{bucket}/picture", None, None)))


async def test_include_accepts_commas(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, NewInference("one", metadata=_ITEMS, predictions=[("person", 0.5)]))
    for path in (_PATH, f"{_PATH}/one"):
        body = (await client.get(f"{path}?include=metadata,%20predictions")).json()
        answer = body["items"][0] if path == _PATH else body
        assert [item["key"] for item in answer["metadata"]] == ["frame_number", "data_source"]
        assert [prediction["label"] for prediction in answer["predictions"]] == ["person"]
        refused = await client.get(f"{path}?include=metadata,nothing")
        assert refused.status_code == 422
        assert "'metadata', 'predictions' or 'urls'" in refused.json()["detail"]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_pages_and_streams_are_compressed(
    make_app: MakeApp, engine: AsyncEngine, coding: str, accept: str
) -> None:
    inferences = [
        NewInference(f"id-{n}", metadata=_ITEMS, predictions=[("person", 0.5)]) for n in range(200)
    ]
    await store(engine, *inferences)
    body = {"include": ["metadata", "predictions"], "limit": 200}
    async with serve_app(make_app()) as client:
        plain, _ = await _read_raw(client, body, {"Accept": accept, "Accept-Encoding": "identity"})
        headers = {"Accept": accept, "Accept-Encoding": coding}
        compressed, answer = await _read_raw(client, body, headers)
    assert answer.headers["content-encoding"] == coding
    assert len(compressed) < len(plain) / 5
    decompress = gzip.decompress if coding == "gzip" else cramjam.zstd.decompress
    assert _decode_ids(bytes(decompress(compressed))) == _decode_ids(plain)


async def _read_raw(
    client: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str]
) -> tuple[bytes, httpx.Response]:
    """Return the raw bytes of an answer, and the answer."""
    async with client.stream("POST", f"{_PATH}/query", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        return b"".join([piece async for piece in answer.aiter_raw()]), answer


def _decode_ids(text: bytes) -> list[str]:
    lines = [json.loads(line) for line in text.splitlines()]
    items = lines[0]["items"] if len(lines) == 1 else lines[:-1]
    assert len(items) == 200
    return [item["inference_id"] for item in items]
