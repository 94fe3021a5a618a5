"""Answers contain only the requested fields, and only the requested parts of them."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import model_key
from tests.integration.stored_inferences import NewInference, at, store

_QUERY = "/v1/models/model/inferences/query"
ARROW = "application/vnd.apache.arrow.stream"
_ITEMS = [
    ("frame_number", "int", "7"),
    ("camera", "json", '{"name": "hallway", "angle": 10}'),
    ("a.b", "string", "dotted"),
]


async def _read_item(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post(_QUERY, json=body)
    assert answer.status_code == 200, answer.text
    [item] = answer.json()["items"]
    return dict(item)


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    await store(engine, NewInference("one", at(1), _ITEMS, [("person", 0.5), ("dog", 0.25)]))


async def test_returns_requested_fields(client: httpx.AsyncClient) -> None:
    assert await _read_item(client, fields=["inference_id", "top_label"]) == {
        "inference_id": "one",
        "top_label": "person",
    }
    both = await _read_item(client, fields=["predictions.label", "predictions.score"])
    assert both == {
        "predictions": [{"label": "person", "score": 0.5}, {"label": "dog", "score": 0.25}]
    }
    assert set(await _read_item(client, fields=["ok"], include=["metadata"])) == {"ok", "metadata"}
    assert set(await _read_item(client, fields=["urls.data"])) == {"urls"}
    assert (await _read_item(client, fields=["urls.data"]))["urls"] == {"data": None}


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        (["metadata.frame_number"], ["frame_number"]),
        (["metadata.camera.angle"], ["camera"]),
        (["metadata.camera"], ["camera"]),
        (["metadata.a.b"], ["a.b"]),
        (["metadata.cam"], []),
        (["metadata.cam", "metadata"], ["frame_number", "camera", "a.b"]),
    ],
)
async def test_metadata_by_key(
    client: httpx.AsyncClient, chosen: list[str], keys: list[str]
) -> None:
    item = await _read_item(client, fields=chosen, unknown_keys="empty")
    assert [entry["key"] for entry in item["metadata"]] == keys


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/x-ndjson", "text/csv", ARROW]
)
async def test_refuses_unknown_key(client: httpx.AsyncClient, media_type: str) -> None:
    body = {"fields": ["ok", "metadata.frame_numer", "metadata.camera.angel", "metadata.camera"]}
    answer = await client.post(_QUERY, json=body, headers={"Accept": media_type})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"].endswith("#unknown-metadata-key")
    assert problem["detail"] == f"fields[1]: {problem['errors'][0]['message']}."
    assert [fault["path"] for fault in problem["errors"]] == ["fields[1]", "fields[2]"]
    assert problem["errors"][0]["message"].startswith(
        "there is no metadata key 'frame_numer'; the nearest are frame_number"
    )
    assert problem["errors"][1]["known"][0] == "camera.angle"


async def test_warns_about_unknown_key_that_counts_as_empty(client: httpx.AsyncClient) -> None:
    body = {"fields": ["metadata.frame_numer", "metadata.camera"], "unknown_keys": "empty"}
    [warning] = (await client.post(_QUERY, json=body)).json()["warnings"]
    assert "'frame_numer'" in warning
    assert "frame_number" in warning


async def test_knows_keys_however_they_are_named(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    long = "k" * 280  # the index has its beginning
    items = [("dataset_split", "string", "train"), (long, "int", "1"), ("tags", "json", "[1]")]
    await store(engine, NewInference("two", at(2), items))
    names = ["dataset_split", "dataset_snapshot_split", long, "tags", "tags[]"]
    for name in names:
        answer = await client.post(_QUERY, json={"fields": [f"metadata.{name}"]})
        assert (answer.status_code, answer.json()["warnings"]) == (200, []), name
    whole = await client.post(_QUERY, json={"fields": ["metadata", "metadata.nothing"]})
    assert whole.status_code == 200


async def test_a_key_that_is_erased_amid_pages_ends_no_question(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference("two", at(2), [("other", "int", "1")]))
    body = {"fields": ["metadata.other"], "limit": 1}
    cursor = (await client.post(_QUERY, json=body)).json()["next"]
    async with engine.begin() as connection:
        await connection.execute(model_key.delete())
    assert (await client.post(_QUERY, json=body)).status_code == 422
    assert (await client.post(_QUERY, json={**body, "cursor": cursor})).status_code == 200


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("inference_ids", "inference_id"),
        ("predictions.labl", "predictions.label"),
        ("uid.x", "uid"),
        ("metadata.", "metadata"),
    ],
)
async def test_rejects_unknown_field(client: httpx.AsyncClient, name: str, near: str) -> None:
    answer = await client.post(_QUERY, json={"fields": ["uid", name]})
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert fault["path"] == "fields[1]"
    assert near in fault["message"]
    assert near in fault["known"]
    is_hinted = "written metadata.KEY" in fault["message"]
    assert is_hinted == (name in {"inference_ids", "metadata."})


async def test_fields_of_a_link_and_a_cursor_of_other_fields(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference("two", at(2)))
    link: dict[str, Any] = {"fields": ["inference_id", "ok"], "limit": 1}
    first = (await client.get("/v1/models/model/inferences", params=link)).json()
    assert first["items"] == [{"inference_id": "two", "ok": None}]
    rest = await client.post(_QUERY, json={"cursor": first["next"], "fields": ["inference_id"]})
    assert rest.json()["items"] == [{"inference_id": "one"}]


async def test_metadata_as_an_object(client: httpx.AsyncClient) -> None:
    camera = {"name": "hallway", "angle": 10}
    metadata = {"frame_number": 7, "camera": camera, "a.b": "dotted"}
    body = {"include": ["metadata"], "metadata_as": "object"}
    assert (await _read_item(client, **body))["metadata"] == metadata
    chosen = await _read_item(client, fields=["metadata.camera.angle"], metadata_as="object")
    assert chosen == {"metadata": {"camera": camera}}
    query = "include=metadata&metadata_as=object"
    page = (await client.get(f"/v1/models/model/inferences?{query}")).json()
    assert page["items"][0]["metadata"] == metadata
    item = (await client.get(f"/v1/models/model/inferences/one?{query}")).json()
    assert item["metadata"] == metadata
