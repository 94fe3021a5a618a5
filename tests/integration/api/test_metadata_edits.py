"""Edits of metadata change the answer, the index and the blob."""

import asyncio
import json
from typing import Any

import httpx
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import audit, blob_reference, metadata_key
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.stored_inferences import NewInference, at, store

_ONE = "/v1/models/model/inferences/one"
_ITEMS = [
    {"key": "k", "type": "int", "value": "5"},
    {"key": "keep", "type": "json", "value": '{"a": 1.50, "b": ["x"]}'},
]


def _make_inference(
    inference_id: str = "one", seconds: float = 0, key: str | None = None
) -> NewInference:
    items = [(item["key"], item["type"], item["value"]) for item in _ITEMS]
    return NewInference(inference_id, at(seconds), items, keys=(None, None, key))


async def _find_ids(client: httpx.AsyncClient, key: str, operator: str, value: Any) -> list[str]:
    condition = {"key": key, "operator": operator, "value": value}
    body = {"metadata_filter": [condition], "unknown_keys": "empty"}
    answer = await client.post("/v1/models/model/inferences/query", json=body)
    assert answer.status_code == 200, answer.text
    return [item["inference_id"] for item in answer.json()["items"]]


async def _edit(client: httpx.AsyncClient, *items: Any, **more: Any) -> httpx.Response:
    metadata = [{"key": key, "type": kind, "value": value} for key, kind, value in items]
    headers = more.pop("headers", {})
    return await client.post(
        f"{_ONE}/metadata", json={"metadata": metadata, **more}, headers=headers
    )


async def test_changes_and_adds_items(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    key = StorageKey(bucket, "m")
    before = {"event": {"x": 1.50}, "metadata": {"extended_metadata": _ITEMS}}
    blobs.put(key, json.dumps(before).encode(), content_type="application/json")
    await store(engine, _make_inference(key=f"{bucket}/m"), _make_inference("two", 1))
    answer = await _edit(client, ("k", "string", "five"), ("reviewed", "bool", True))
    assert answer.status_code == 200, answer.text
    values = {item["key"]: item["value"] for item in answer.json()["metadata"]}
    assert values == {"k": "five", "reviewed": "true", "keep": _ITEMS[1]["value"]}
    assert (answer.json()["revision"], answer.headers["ETag"]) == (2, '"2"')
    assert answer.json()["metadata_storage_key"] == str(key)
    assert await _find_ids(client, "k", "eq", 5) == ["two"]
    assert await _find_ids(client, "k", "eq", "five") == ["one"]
    assert await _find_ids(client, "reviewed", "eq", True) == ["one"]
    assert await _find_ids(client, "keep.a", "eq", 1.5) == ["two", "one"]
    assert await _find_ids(client, "keep.b[]", "eq", "x") == ["two", "one"]
    after = json.loads(blobs.get(key, limit=10_000))
    assert after["event"] == before["event"]
    items = [item for item in after["metadata"]["extended_metadata"] if item["key"] == "keep"]
    assert items == [_ITEMS[1]]
    async with engine.connect() as connection:
        [entry] = (await connection.execute(select(audit))).all()
    assert entry.detail == {"keys": ["k", "reviewed"], "revision": 2}


async def test_creates_missing_blob(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    target = _make_inference()
    await store(engine, target)
    answer = await _edit(client, ("k", "int", "6"))
    key = StorageKey(bucket, f"metadata/model/{target.uid}")
    assert answer.json()["metadata_storage_key"] == str(key)
    stream = await client.get(f"{_ONE}/metadata")
    assert stream.json()["extended_metadata"][-1] == {"key": "k", "type": "int", "value": "6"}
    assert len(stream.json()["extended_metadata"]) == 2


async def test_copies_shared_blob_first(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    shared = StorageKey(bucket, "shared")
    blobs.put(shared, json.dumps(_ITEMS).encode(), content_type="application/json")
    inferences = [
        _make_inference(key=f"{bucket}/shared"),
        _make_inference("two", 1, f"{bucket}/shared"),
    ]
    model = await store(engine, *inferences)
    answer = await _edit(client, ("k", "int", "6"))
    own = f"s3://{bucket}/metadata/model/{inferences[0].uid}"
    assert answer.json()["metadata_storage_key"] == own
    assert json.loads(blobs.get(shared, limit=10_000)) == _ITEMS
    async with engine.connect() as connection:
        references = {
            (row.storage_key, row.uid)
            for row in await connection.execute(
                select(blob_reference).where(blob_reference.c.model == model)
            )
        }
    assert references == {(own, inferences[0].uid), (str(shared), inferences[1].uid)}


async def test_literal_keys_and_paths(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, _make_inference())
    assert (await _edit(client, ("keep.a", "string", "literal"))).status_code == 200
    assert await _find_ids(client, "keep.a", "eq", "literal") == ["one"]
    assert (await _edit(client, ("keep", "string", "plain"))).status_code == 200
    assert await _find_ids(client, "keep.a", "eq", "literal") == ["one"]
    assert await _find_ids(client, "keep.b[]", "eq", "x") == []
    assert (await _edit(client, ("keep", "json", None))).status_code == 200
    assert await _find_ids(client, "keep", "exists", None) == ["one"]


async def test_refusals(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, _make_inference(), _make_inference("other", 1))
    assert (await _edit(client, ("k", "int", "x"))).status_code == 422
    assert (await _edit(client, ("k", "number?", "1"))).status_code == 422
    assert (await _edit(client, ("k", "json", "{"))).status_code == 422
    assert (await _edit(client, ("k", "int", 1), ("k", "int", 2))).status_code == 422
    assert (await _edit(client, ("k", "int", "6"), revision=9)).status_code == 412
    late = await _edit(client, ("unseen", "int", "6"), headers={"If-Match": '"9"'})
    assert late.status_code == 412
    async with engine.connect() as connection:  # the model gets no new name either
        unseen = select(metadata_key.c.key).where(metadata_key.c.name == "unseen")
        assert await connection.scalar(unseen) is None
    assert (await _edit(client, ("k", "int", "6"), revision=1)).status_code == 200


async def test_ambiguous_id_requires_the_uid(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    inferences = [_make_inference("one", n) for n in range(2)]
    await store(engine, *inferences)
    refused = await _edit(client, ("k", "int", "6"))
    assert (refused.status_code, "uid:" in refused.json()["detail"]) == (409, True)
    path = f"/v1/models/model/inferences/uid:{inferences[0].uid}/metadata"
    body = {"metadata": [{"key": "k", "type": "int", "value": "6"}]}
    assert (await client.post(path, json=body)).json()["uid"] == str(inferences[0].uid)


async def test_copies_blob_that_is_also_the_response(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    """The metadata blob is also the response, so it must not change."""
    both = StorageKey(bucket, "both")
    blobs.put(both, json.dumps(_ITEMS).encode(), content_type="application/json")
    target = NewInference("one", keys=(None, f"{bucket}/both", f"{bucket}/both"))
    await store(engine, target)
    answer = await _edit(client, ("k", "int", "6"))
    assert answer.json()["response_storage_key"] == str(both)
    assert answer.json()["metadata_storage_key"] != str(both)
    assert json.loads(blobs.get(both, limit=10_000)) == _ITEMS


async def test_edit_uses_one_connection_at_a_time(
    make_app: MakeApp, engine: AsyncEngine, database: str
) -> None:
    """With more, as many edits as the pool has connections would wait for each other forever."""
    await store(engine, _make_inference())
    app, small = make_app(), create_engine(database, pool_size=1)
    app.state.engine, app.state.dictionary = small, Dictionary(small)
    try:
        async with make_client(app) as client:
            answers = await asyncio.gather(
                *(_edit(client, (f"k{n}", "int", "6")) for n in range(4))
            )
    finally:
        await small.dispose()
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sorted(answer.json()["revision"] for answer in answers) == [2, 3, 4, 5]


async def test_path_into_a_new_value_does_not_replace_a_dotted_key(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """The key `a.b` takes precedence over `a` = {"b": …}, as it does for events."""
    await store(engine, NewInference("one", at(0), [("a.b", "int", "1"), ("a", "int", "9")]))
    answer = await _edit(client, ("a", "json", {"b": 2, "c": 3}))
    assert answer.status_code == 200, answer.text
    assert await _find_ids(client, "a.b", "eq", 1) == ["one"]
    assert await _find_ids(client, "a.b", "eq", 2) == []
    assert await _find_ids(client, "a.c", "eq", 3) == ["one"]
    answer = await _edit(client, ("a.b", "int", "5"))
    assert answer.status_code == 200, answer.text
    assert await _find_ids(client, "a.b", "eq", 5) == ["one"]
    assert await _find_ids(client, "a.b", "eq", 1) == []
