"""Registrations, retention policies, metadata keys, over HTTP."""

from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import registration
from tests.integration.stored_inferences import NewInference, at, store

ODD_IDS = ["a/b", "a%2Fb", "ü", "query", "uid:x", " ", "a b?c#d", "..a", "%", "a//b", "\U0001f600"]


@pytest.mark.parametrize("model_id", ODD_IDS)
async def test_accepts_any_model_id(client: httpx.AsyncClient, model_id: str) -> None:
    path = f"/v1/models/{quote(model_id, safe='')}"
    body = {"name": "x", "task_type": "Object Detection", "class_labels": ["a", "b"]}
    created = await client.put(path, json=body)
    assert created.status_code == 201, created.text
    assert created.json()["model_id"] == model_id
    assert created.json()["task_type"] == "object_detection"
    assert (await client.get(path)).json() == created.json()
    again = await client.put(
        path, json={"name": "y"}, headers={"If-Match": created.headers["ETag"]}
    )
    assert (again.status_code, again.json()["revision"]) == (200, 2)
    late = await client.put(path, json={}, headers={"If-Match": created.headers["ETag"]})
    assert late.status_code == 412
    assert [item["model_id"] for item in (await client.get("/v1/models")).json()["items"]] == [
        model_id
    ]
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404


async def test_refuses_to_remove_model_with_inferences(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference())
    refused = await client.delete("/v1/models/model")
    assert refused.status_code == 409
    assert refused.json()["type"] == "/docs/errors#conflict"


async def test_lists_are_paged(client: httpx.AsyncClient) -> None:
    for name in "cab":
        await client.put(f"/v1/models/{name}", json={})
    ids, cursor = [], None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await client.get("/v1/models", params=params)).json()
        ids += [item["model_id"] for item in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert ids == ["a", "b", "c"]
    assert (await client.get("/v1/models", params={"cursor": "x"})).status_code == 422


async def test_metadata_keys(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, NewInference("1", at(1), [("k", "int", "5"), ("s", "string", "x")]))
    await store(engine, NewInference("2", at(2), [("k", "string", "five")]))
    answer = (await client.get("/v1/models/model/metadata-keys")).json()
    k, s = answer["items"]
    assert (k["name"], k["count"], k["conflict"]) == ("k", 2, True)
    assert {kind["type"]: kind["examples"] for kind in k["types"]} == {
        "int": ["5"],
        "string": ["five"],
    }
    assert (s["name"], s["compared_as"], s["conflict"]) == ("s", ["string"], False)
    assert answer["capped"] is False


async def test_retention_policy(client: httpx.AsyncClient) -> None:
    await client.put("/v1/models/m", json={})
    path = "/v1/models/m/retention-policy"
    assert (await client.get(path)).status_code == 404
    body = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
    created = await client.put(path, json=body)
    assert created.status_code == 200, created.text
    assert created.json()["rules"] == [
        {"name": None, "filter": None, **body["rules"][0], "keep_response": "P1Y"}
    ]
    current = {name: value for name, value in created.json().items() if name != "would_delete"}
    assert (await client.get(path)).json() == current
    wrong = {"rules": [{"keep_input": "P2Y", "keep_inference": "P1Y"}]}
    assert (await client.put(path, json=wrong)).status_code == 422
    assert (await client.put(path, json=body, headers={"If-Match": '"7"'})).status_code == 412
    run = await client.post(f"{path}/run")
    assert (run.status_code, run.json()["state"], run.json()["model_id"]) == (202, "pending", "m")
    requested = run.json()
    assert requested.pop("warnings") == []  # of the request alone
    assert (await client.get(run.headers["Location"])).json() == requested
    assert (await client.get("/v1/retention/runs")).json()["items"] == [requested]
    assert (await client.delete(path)).status_code == 204
    assert (await client.delete(path)).status_code == 404


async def test_reregistered_model_keeps_its_number(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    async def find_number() -> int | None:
        query = select(registration.c.model).where(registration.c.model_id == "again")
        async with engine.connect() as connection:
            number: int | None = await connection.scalar(query)
        return number

    await client.put("/v1/models/again", json={"name": "one"})
    first = await find_number()
    assert (await client.delete("/v1/models/again")).status_code == 204
    assert await find_number() is None
    await client.put("/v1/models/other", json={})
    await client.put("/v1/models/again", json={"name": "two"})
    assert await find_number() == first
