"""Content negotiation: the media type of an answer, and its compression."""

import gzip
import json
from typing import Any

import cramjam
import httpx

from tests.integration.stored_inferences import NewInference, at

from .app_server import serve_app
from .conftest import LINES, Api, MakeApp

_PATH = "/v1/models/model/inferences"
_ITEMS = [("frame_number", "int", "9001"), ("data_source", "string", "hallway-camera-feed")]


async def test_types_that_are_offered_and_others(api: Api) -> None:
    picture = api.put_blob("picture", b"\xff\xd8", "image/jpeg")
    await api.store(NewInference("one", keys=(picture, None, None)))
    for path, accept, offered in (
        ("/v1/models", "text/csv", ["application/json"]),
        ("/v1/models", "application/x-ndjson", ["application/json"]),
        ("/v1/certificates/1/leaves", "application/json", ["application/octet-stream"]),
        (_PATH, "text/html, image/*", ["application/json", "application/x-ndjson"]),
        (f"{_PATH}/one/data", "application/json", ["image/jpeg", "application/octet-stream"]),
    ):
        answer = await api.get(path, headers={"Accept": accept})
        assert answer.status_code == 406, path
        assert answer.headers["content-type"] == "application/problem+json", path
        assert answer.json()["type"] == "/docs/errors#not-acceptable", path
        [fault] = answer.json()["errors"]
        assert fault["path"] == "header.accept", path
        assert fault["known"][: len(offered)] == offered, path
    for accept in ("image/*", "image/jpeg", "application/octet-stream", "*/*"):
        answer = await api.get(f"{_PATH}/one/data", headers={"Accept": accept})
        shown = (answer.status_code, answer.headers["content-type"])
        assert shown == (200, "image/jpeg"), accept


async def test_include_accepts_commas(api: Api) -> None:
    await api.store(NewInference("one", metadata=_ITEMS, predictions=[("person", 0.5)]))
    for path in (_PATH, f"{_PATH}/one"):
        body = await api.read(f"{path}?include=metadata,%20predictions")
        answer = body["items"][0] if path == _PATH else body
        assert [item["key"] for item in answer["metadata"]] == ["frame_number", "data_source"]
        assert [prediction["label"] for prediction in answer["predictions"]] == ["person"]
        refused = await api.read(f"{path}?include=metadata,nothing", status=422)
        assert "'metadata', 'predictions' or 'urls'" in refused["detail"]


async def test_pages_and_streams_are_compressed(api: Api, make_app: MakeApp) -> None:
    person = [("person", 0.5)]
    await api.store(*(NewInference(str(n), at(0), _ITEMS, person) for n in range(200)))
    body = {"include": ["metadata", "predictions"], "limit": 200}
    async with serve_app(make_app()) as client:
        for accept in ({"Accept": "application/json"}, LINES):
            plain, _ = await _read_raw(client, body, accept | {"Accept-Encoding": "identity"})
            for coding, decompress in (
                ("gzip", gzip.decompress),
                ("zstd", cramjam.zstd.decompress),
            ):
                headers = accept | {"Accept-Encoding": coding}
                compressed, answer = await _read_raw(client, body, headers)
                assert answer.headers["content-encoding"] == coding, accept
                assert len(compressed) < len(plain) / 5, (coding, accept)
                ids = _decode_ids(bytes(decompress(compressed)))
                assert ids == _decode_ids(plain), (coding, accept)


async def _read_raw(
    client: httpx.AsyncClient, body: dict[str, Any], headers: dict[str, str]
) -> tuple[bytes, httpx.Response]:
    async with client.stream("POST", f"{_PATH}/query", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        return b"".join([piece async for piece in answer.aiter_raw()]), answer


def _decode_ids(text: bytes) -> list[str]:
    lines = [json.loads(line) for line in text.splitlines()]
    items = lines[0]["items"] if len(lines) == 1 else lines[:-1]
    assert len(items) == 200
    return [item["inference_id"] for item in items]
