"""Inferences over HTTP: query, count, read, blobs, erasure."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, at, store

_QUERY = "/v1/models/model/inferences/query"


def _make_inferences() -> list[NewInference]:
    return [
        NewInference(
            f"id-{n}",
            at(n * 40_000),
            [("frame_number", "int", str(8_995 + n)), ("data_source", "string", "hallway")],
            [("person", n / 10)],
        )
        for n in range(10)
    ]


async def _find_ids(client: httpx.AsyncClient, **body: Any) -> list[str]:
    answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    return [item["inference_id"] for item in answer.json()["items"]]


async def test_metadata_filter(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    condition = {"key": "frame_number", "type": "int", "operator": "GREATER_THAN", "value": "9000"}
    assert await _find_ids(client, metadata_filter=[condition]) == ["id-9", "id-8", "id-7", "id-6"]
    assert await _find_ids(client, metadata_filter=[condition], sort="received_at", limit=2) == [
        "id-6",
        "id-7",
    ]
    body = {"prediction": {"label": "person", "score": {"lt": 0.4}}, "metadata_filter": []}
    assert (await client.post("/v1/models/model/inferences/count", json=body)).json() == {
        "count": 4,
        "warnings": [],
    }


async def test_query_accepts_ids_and_uids(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """Erasures, holds and queries all accept `uid:<uuid>` in the same field."""
    await store(engine, *_make_inferences())
    uid = (await client.get("/v1/models/model/inferences/id-3")).json()["uid"]
    assert await _find_ids(client, inference_ids=[f"uid:{uid.upper()}"]) == ["id-3"]
    assert await _find_ids(client, inference_ids=["id-7", f"uid:{uid}", "id-none"]) == [
        "id-7",
        "id-3",
    ]
    refused = await client.post(_QUERY, json={"inference_ids": ["uid:xyz"]})
    assert refused.status_code == 422
    assert [fault["path"] for fault in refused.json()["errors"]] == ["inference_ids"]


async def test_numbers_are_exact(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    values = ["0.1", "0.1000000000000000055511151231257827", "98765432109876543210", "1e300"]
    inferences = [NewInference(v, at(n), [("x", "float", v)]) for n, v in enumerate(values)]
    await store(engine, *inferences)
    for value in values:
        raw = f'{{"metadata_filter": [{{"key": "x", "operator": "eq", "value": {value}}}]}}'
        answer = await client.post(
            _QUERY, content=raw, headers={"Content-Type": "application/json"}
        )
        assert [item["inference_id"] for item in answer.json()["items"]] == [value]


async def test_pages_follow_their_cursor(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    ids, body = [], {"limit": 3, "cursor": None}
    while True:
        page = (await client.post(_QUERY, json=body)).json()
        ids += [item["inference_id"] for item in page["items"]]
        if page["next"] is None:
            break
        body["cursor"] = page["next"]
    assert ids == [f"id-{n}" for n in reversed(range(10))]
    other = {"limit": 3, "cursor": body["cursor"], "ok": True}
    refused = await client.post(_QUERY, json=other)
    assert (refused.status_code, refused.json()["type"]) == (422, "/docs/errors#invalid-cursor")


async def test_a_window_is_half_open(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    inferences = _make_inferences()
    await store(engine, *inferences)
    window = {
        "from": inferences[2].received_at.isoformat(),
        "to": inferences[4].received_at.isoformat(),
    }
    assert await _find_ids(client, received_at=window) == ["id-3", "id-2"]
    link = {"received_from": window["from"], "received_to": window["to"], "include": "metadata"}
    answer = (await client.get("/v1/models/model/inferences", params=link)).json()
    assert [item["inference_id"] for item in answer["items"]] == ["id-3", "id-2"]
    assert answer["items"][0]["metadata"][0]["key"] == "frame_number"


@pytest.mark.parametrize("inference_id", ["a/b", "a%2Fb", "ü", "query", "count", "%", "x y"])
async def test_accepts_any_inference_id(
    client: httpx.AsyncClient, engine: AsyncEngine, inference_id: str
) -> None:
    target = NewInference(inference_id, aliases=("other/id",))
    await store(engine, target)
    for name in (inference_id, "other/id", f"uid:{target.uid}"):
        answer = await client.get(f"/v1/models/model/inferences/{quote(name, safe='')}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["inference_id"] == inference_id
        assert answer.json()["aliases"] == ["other/id"]
        assert answer.json()["count"] == 1


async def test_times_and_latencies(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    target = NewInference("one", at(0.000001))
    await store(engine, target)
    answer = (await client.get("/v1/models/model/inferences/one")).json()
    assert answer["received_at"] == "2026-11-01T00:00:00.000001Z"
    assert (answer["pre_ms"], answer["ok"], answer["width"]) == (None, None, None)
    async with engine.begin() as connection:
        times = {"forwarded_at": target.received_at + timedelta(microseconds=1500)}
        await connection.execute(update(inference).values(times))
    assert (await client.get("/v1/models/model/inferences/one")).json()["pre_ms"] == 1.5


async def test_streams_blobs_with_their_type(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    keys = (f"{bucket}/d", f"{bucket}/r", None)
    image = b"\xff\xd8" + b"x" * 1_000_000
    blobs.put(StorageKey(bucket, "d"), image, content_type="image/jpeg")
    target = NewInference("one", keys=keys, extras=Extras(data_content_type="image/png"))
    await store(engine, target)
    base = "/v1/models/model/inferences/one"
    data = await client.get(f"{base}/data")
    assert (data.content, data.headers["content-type"]) == (image, "image/png")
    assert data.headers["x-content-type-options"] == "nosniff"
    missing = await client.get(f"{base}/response")
    assert (missing.status_code, "not in the bucket" in missing.text) == (404, True)
    assert (await client.get(f"{base}/metadata")).status_code == 404
    urls = (await client.get(base)).json()["urls"]
    assert urls["metadata"] is None
    async with httpx.AsyncClient(timeout=120) as anyone:
        assert (await anyone.get(urls["data"])).content == image
    async with engine.begin() as connection:
        await connection.execute(update(inference).values(data_deleted_at=at(9)))
    assert (await client.get(f"{base}/data")).status_code == 410
    assert (await client.get(base)).json()["urls"]["data"] is None


async def test_erases_inference(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(
        engine, NewInference("one", at(1)), NewInference("one", at(2)), NewInference("two", at(3))
    )
    base = "/v1/models/model/inferences"
    answer = await client.delete(f"{base}/one")
    assert answer.status_code == 202, answer.text
    assert (answer.json()["state"], answer.json()["model_id"]) == ("pending", "model")
    assert (await client.get(answer.headers["Location"])).json() == answer.json()
    assert (await client.get("/v1/erasures")).json()["items"] == [answer.json()]
    assert (await client.get(f"{base}/one")).status_code == 404
    assert await _find_ids(client) == ["two"]
    assert (await client.delete(f"{base}/one")).status_code == 202, "hidden, and requested again"
    assert (await client.delete(f"{base}/never")).status_code == 404
