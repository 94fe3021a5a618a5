"""Thumbnails of inputs in a real bucket: one audit entry for each answer, none of erased inputs."""

import json
from base64 import b64decode
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.thumbnails import decoder, maker
from inference_store.erasure import audit_chain
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, at, store
from tests.unit.api.thumbnails.pictures import SVG, make_picture, make_png

from .conftest import MakeApp, make_client

_BATCH = "/v1/models/model/inferences/thumbnails"
_PICTURES = {
    "jpeg": make_picture(size=(640, 320)),
    "png": make_picture("PNG", (32, 64)),
    "svg": SVG,
    "cut": make_picture("JPEG", (640, 480))[:-400],
    "bomb": make_png(20_000, 20_000),
}


@pytest.fixture(autouse=True)
def patient_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a request may take as long as a busy machine needs."""
    monkeypatch.setattr(decoder, "PICTURE_SECONDS", 300.0)
    monkeypatch.setattr(maker, "BATCH_SECONDS", 600.0)


@pytest.fixture
async def uids(engine: AsyncEngine, blobs: Blobs, bucket: str) -> dict[str, str]:
    """The uid of each picture's inference, and of one whose object is missing."""
    inferences = {}
    for n, name in enumerate([*_PICTURES, "missing"]):
        if name in _PICTURES:
            blobs.put(StorageKey(bucket, name), _PICTURES[name], content_type="image/jpeg")
        inferences[name] = NewInference(name, at(n), keys=(f"{bucket}/{name}", None, None))
    await store(engine, *inferences.values())
    return {name: str(target.uid) for name, target in inferences.items()}


async def _request_thumbnails(
    client: httpx.AsyncClient, *uids: str, **more: Any
) -> list[dict[str, Any]]:
    answer = await client.post(_BATCH, json={"uids": uids, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["cache-control"] == "no-store"
    return [json.loads(line) for line in answer.text.splitlines()]


async def _read_audit(client: httpx.AsyncClient, **filters: str) -> list[dict[str, Any]]:
    params = {"action": "thumbnails_read", **filters}
    entries: list[dict[str, Any]] = (await client.get("/v1/audit", params=params)).json()["items"]
    return entries


async def test_a_batch(client: httpx.AsyncClient, uids: dict[str, str]) -> None:
    nobody = str(uuid4())
    requested = [*uids.values(), nobody]
    lines = await _request_thumbnails(client, *requested, edge=100)
    assert [line["uid"] for line in lines] == requested
    jpeg, png, *others = lines
    assert b64decode(jpeg["data"])[:2] == b64decode(png["data"])[:2] == b"\xff\xd8"
    assert (jpeg["width"], jpeg["height"], jpeg["content_type"]) == (100, 50, "image/jpeg")
    assert (jpeg["picture_width"], jpeg["picture_height"], jpeg["problem"]) == (640, 320, None)
    assert (png["width"], png["height"]) == (32, 64)
    assert {line["data"] for line in others} == {None}
    problems = [(line["problem"]["status"], line["problem"]["detail"]) for line in others]
    assert problems == [
        (422, "The input is no picture in JPEG, PNG, WebP, GIF or BMP."),
        (422, "The picture is damaged or cut off."),
        (422, "The picture has too many pixels."),
        (404, problems[3][1]),
        (404, "The model has no such inference."),
    ]
    assert "is not in the bucket" in problems[3][1]
    [entry] = await _read_audit(client)
    assert (entry["uid"], entry["model_id"]) == (None, "model")
    assert entry["detail"] == {"inferences": [uids["jpeg"], uids["png"]], "edge": 100}
    assert await _read_audit(client, uid=uids["png"]) == [entry]
    assert await _read_audit(client, uid=uids["svg"]) == []


async def test_batch_as_one_object(client: httpx.AsyncClient, uids: dict[str, str]) -> None:
    body = {"uids": [uids["jpeg"], uids["svg"]]}
    headers = {"Accept": "application/json"}
    answer = (await client.post(_BATCH, json=body, headers=headers)).json()
    assert answer["items"] == await _request_thumbnails(client, *body["uids"])


async def test_single_thumbnail(client: httpx.AsyncClient, uids: dict[str, str]) -> None:
    path = "/v1/models/model/inferences/{}/thumbnail"
    answer = await client.get(path.format("jpeg"), params={"edge": 64})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.content[:2] == b"\xff\xd8"
    refused = await client.get(path.format("svg"))
    assert (refused.status_code, refused.json()["type"]) == (422, "/docs/errors#no-thumbnail")
    assert (await client.get(path.format("missing"))).status_code == 404
    assert (await client.get(path.format("nobody"))).status_code == 404
    [entry] = await _read_audit(client)
    assert (entry["uid"], entry["detail"]) == (uids["jpeg"], {"edge": 64})


@pytest.mark.parametrize(
    ("extras", "detail"),
    [
        ({"data_content_type": "text/plain"}, "its media type is 'text/plain'"),
        ({"data_size": 20 * 1024 * 1024 + 1}, "over 20 MiB"),
    ],
)
async def test_uses_the_index_before_fetching(
    client: httpx.AsyncClient, engine: AsyncEngine, extras: dict[str, Any], detail: str
) -> None:
    target = NewInference("one", extras=Extras(**extras), keys=("nobody/nothing", None, None))
    await store(engine, target)
    [line] = await _request_thumbnails(client, str(target.uid))
    assert detail in line["problem"]["detail"]


async def test_second_request_uses_the_cache(
    client: httpx.AsyncClient, blobs: Blobs, bucket: str, uids: dict[str, str]
) -> None:
    """The audit records it again."""
    first = await _request_thumbnails(client, uids["jpeg"])
    blobs.put(StorageKey(bucket, "jpeg"), SVG, content_type="image/jpeg")
    assert await _request_thumbnails(client, uids["jpeg"]) == first
    assert len(await _read_audit(client)) == 2
    assert (await _request_thumbnails(client, uids["jpeg"], edge=64))[0]["data"] is None


async def test_hides_erased_inference(
    client: httpx.AsyncClient, engine: AsyncEngine, uids: dict[str, str]
) -> None:
    assert (await _request_thumbnails(client, uids["jpeg"]))[0]["data"]
    erased = await client.delete("/v1/models/model/inferences/jpeg")
    assert erased.status_code == 202
    [gone] = await _request_thumbnails(client, uids["jpeg"])
    assert (gone["data"], gone["problem"]["status"]) == (None, 404)
    async with engine.begin() as connection:
        await connection.execute(update(inference).values(data_deleted_at=func.now()))
    [gone] = await _request_thumbnails(client, uids["png"])
    assert (gone["data"], gone["problem"]["status"]) == (None, 410)
    assert len(await _read_audit(client)) == 1


async def test_erasure_empties_the_cache(make_app: MakeApp, uids: dict[str, str]) -> None:
    app: FastAPI = make_app()
    async with make_client(app) as client:
        await _request_thumbnails(client, uids["jpeg"], uids["png"])
        cache = app.state.thumbnails._cache
        both = cache.bytes
        await client.delete("/v1/models/model/inferences/jpeg")
        await _request_thumbnails(client, uids["jpeg"])
    assert 0 < cache.bytes < both


async def test_erasure_removes_uids_from_the_audit(
    client: httpx.AsyncClient, engine: AsyncEngine, uids: dict[str, str]
) -> None:
    await _request_thumbnails(client, uids["jpeg"], uids["png"])
    await _request_thumbnails(client, uids["png"])
    async with engine.begin() as connection:
        redacted = await audit_chain.redact_values(connection, uuid4(), uids=[UUID(uids["jpeg"])])
    assert redacted == 1
    assert [entry["detail"].get("inferences") for entry in await _read_audit(client)] == [
        [uids["png"]],
        None,
    ]


async def test_switched_off(make_app: MakeApp, uids: dict[str, str]) -> None:
    async with make_client(make_app(thumbnail_processes=0)) as client:
        answer = await client.post(_BATCH, json={"uids": [uids["jpeg"]]})
        assert not (await client.get("/v1/me")).json()["switched_on"]["thumbnails"]
    assert (answer.status_code, "switched off" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    "body", [{}, {"uids": []}, {"uids": ["x"]}, {"uids": [str(UUID(int=n)) for n in range(101)]}]
)
async def test_rejects_invalid_request(
    client: httpx.AsyncClient, uids: dict[str, str], body: Any
) -> None:
    assert uids
    assert (await client.post(_BATCH, json=body)).status_code == 422
    oversized = {"uids": [uids["jpeg"]], "edge": 9999}
    assert (await client.post(_BATCH, json=oversized)).status_code == 422
