"""Adding to metadata and changing it: in the answer, in the index, in the blob."""

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
from tests.integration.api.conftest import MakeApp, client_of
from tests.integration.stored import Made, at, store

_ONE = "/v1/models/model/inferences/one"
_ITEMS = [
    {"key": "k", "type": "int", "value": "5"},
    {"key": "keep", "type": "json", "value": '{"a": 1.50, "b": ["x"]}'},
]


def _made(inference_id: str = "one", seconds: float = 0, key: str | None = None) -> Made:
    items = [(each["key"], each["type"], each["value"]) for each in _ITEMS]
    return Made(inference_id, at(seconds), items, keys=(None, None, key))


async def _found(client: httpx.AsyncClient, key: str, operator: str, value: Any) -> list[str]:
    asked = {"key": key, "operator": operator, "value": value}
    body = {"metadata_filter": [asked], "unknown_keys": "empty"}
    answer = await client.post("/v1/models/model/inferences/query", json=body)
    assert answer.status_code == 200, answer.text
    return [item["inference_id"] for item in answer.json()["items"]]


async def _change(client: httpx.AsyncClient, *items: Any, **more: Any) -> httpx.Response:
    metadata = [{"key": key, "type": kind, "value": value} for key, kind, value in items]
    headers = more.pop("headers", {})
    return await client.post(
        f"{_ONE}/metadata", json={"metadata": metadata, **more}, headers=headers
    )


async def test_changing_and_adding(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    place = StorageKey(bucket, "m")
    before = {"event": {"x": 1.50}, "metadata": {"extended_metadata": _ITEMS}}
    blobs.put(place, json.dumps(before).encode(), content_type="application/json")
    await store(engine, _made(key=f"{bucket}/m"), _made("two", 1))
    answer = await _change(client, ("k", "string", "five"), ("reviewed", "bool", True))
    assert answer.status_code == 200, answer.text
    shown = {each["key"]: each["value"] for each in answer.json()["metadata"]}
    assert shown == {"k": "five", "reviewed": "true", "keep": _ITEMS[1]["value"]}
    assert (answer.json()["revision"], answer.headers["ETag"]) == (2, '"2"')
    assert answer.json()["metadata_storage_key"] == str(place)
    assert await _found(client, "k", "eq", 5) == ["two"]
    assert await _found(client, "k", "eq", "five") == ["one"]
    assert await _found(client, "reviewed", "eq", True) == ["one"]
    assert await _found(client, "keep.a", "eq", 1.5) == ["two", "one"]
    assert await _found(client, "keep.b[]", "eq", "x") == ["two", "one"]
    after = json.loads(blobs.get(place, limit=10_000))
    assert after["event"] == before["event"]
    kept = [each for each in after["metadata"]["extended_metadata"] if each["key"] == "keep"]
    assert kept == [_ITEMS[1]]
    async with engine.connect() as connection:
        [entry] = (await connection.execute(select(audit))).all()
    assert entry.detail == {"keys": ["k", "reviewed"], "revision": 2}


async def test_a_blob_is_made_where_there_was_none(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    made = _made()
    await store(engine, made)
    answer = await _change(client, ("k", "int", "6"))
    place = StorageKey(bucket, f"metadata/model/{made.uid}")
    assert answer.json()["metadata_storage_key"] == str(place)
    stream = await client.get(f"{_ONE}/metadata")
    assert stream.json()["extended_metadata"][-1] == {"key": "k", "type": "int", "value": "6"}
    assert len(stream.json()["extended_metadata"]) == 2


async def test_a_shared_blob_is_copied_first(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    shared = StorageKey(bucket, "shared")
    blobs.put(shared, json.dumps(_ITEMS).encode(), content_type="application/json")
    made = [_made(key=f"{bucket}/shared"), _made("two", 1, f"{bucket}/shared")]
    model = await store(engine, *made)
    answer = await _change(client, ("k", "int", "6"))
    own = f"s3://{bucket}/metadata/model/{made[0].uid}"
    assert answer.json()["metadata_storage_key"] == own
    assert json.loads(blobs.get(shared, limit=10_000)) == _ITEMS
    async with engine.connect() as connection:
        references = {
            (row.storage_key, row.uid)
            for row in await connection.execute(
                select(blob_reference).where(blob_reference.c.model == model)
            )
        }
    assert references == {(own, made[0].uid), (str(shared), made[1].uid)}


async def test_literal_keys_and_paths(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, _made())
    assert (await _change(client, ("keep.a", "string", "literal"))).status_code == 200
    assert await _found(client, "keep.a", "eq", "literal") == ["one"]
    assert (await _change(client, ("keep", "string", "plain"))).status_code == 200
    assert await _found(client, "keep.a", "eq", "literal") == ["one"]
    assert await _found(client, "keep.b[]", "eq", "x") == []
    assert (await _change(client, ("keep", "json", None))).status_code == 200
    assert await _found(client, "keep", "exists", None) == ["one"]


async def test_refusals(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, _made(), _made("other", 1))
    assert (await _change(client, ("k", "int", "x"))).status_code == 422
    assert (await _change(client, ("k", "number?", "1"))).status_code == 422
    assert (await _change(client, ("k", "json", "{"))).status_code == 422
    assert (await _change(client, ("k", "int", 1), ("k", "int", 2))).status_code == 422
    assert (await _change(client, ("k", "int", "6"), revision=9)).status_code == 412
    late = await _change(client, ("unseen", "int", "6"), headers={"If-Match": '"9"'})
    assert late.status_code == 412
    async with engine.connect() as connection:  # nor does it use up a name of the model's
        unseen = select(metadata_key.c.key).where(metadata_key.c.name == "unseen")
        assert await connection.scalar(unseen) is None
    assert (await _change(client, ("k", "int", "6"), revision=1)).status_code == 200


async def test_an_id_that_repeats_asks_for_the_uid(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    made = [_made("one", n) for n in range(2)]
    await store(engine, *made)
    refused = await _change(client, ("k", "int", "6"))
    assert (refused.status_code, "uid:" in refused.json()["detail"]) == (409, True)
    path = f"/v1/models/model/inferences/uid:{made[0].uid}/metadata"
    body = {"metadata": [{"key": "k", "type": "int", "value": "6"}]}
    assert (await client.post(path, json=body)).json()["uid"] == str(made[0].uid)


async def test_a_second_reference_to_the_same_blob(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    """The metadata blob is the response as well: it is not changed under the response."""
    both = StorageKey(bucket, "both")
    blobs.put(both, json.dumps(_ITEMS).encode(), content_type="application/json")
    made = Made("one", keys=(None, f"{bucket}/both", f"{bucket}/both"))
    await store(engine, made)
    answer = await _change(client, ("k", "int", "6"))
    assert answer.json()["response_storage_key"] == str(both)
    assert answer.json()["metadata_storage_key"] != str(both)
    assert json.loads(blobs.get(both, limit=10_000)) == _ITEMS


async def test_an_edit_holds_one_connection_at_a_time(
    make_app: MakeApp, engine: AsyncEngine, database: str
) -> None:
    """With more, as many edits at once as the pool has connections would wait for each other."""
    await store(engine, _made())
    app, small = make_app(), create_engine(database, pool_size=1)
    app.state.engine, app.state.dictionary = small, Dictionary(small)
    try:
        async with client_of(app) as client:
            answers = await asyncio.gather(
                *(_change(client, (f"k{n}", "int", "6")) for n in range(4))
            )
    finally:
        await small.dispose()
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sorted(answer.json()["revision"] for answer in answers) == [2, 3, 4, 5]


async def test_a_path_into_a_new_value_leaves_a_longer_key_its_row(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """Of `a.b` and of `a` = {"b": …} the longer key owns the name, as with what comes by events."""
    await store(engine, Made("one", at(0), [("a.b", "int", "1"), ("a", "int", "9")]))
    answer = await _change(client, ("a", "json", {"b": 2, "c": 3}))
    assert answer.status_code == 200, answer.text
    assert await _found(client, "a.b", "eq", 1) == ["one"]
    assert await _found(client, "a.b", "eq", 2) == []
    assert await _found(client, "a.c", "eq", 3) == ["one"]
    answer = await _change(client, ("a.b", "int", "5"))
    assert answer.status_code == 200, answer.text
    assert await _found(client, "a.b", "eq", 5) == ["one"]
    assert await _found(client, "a.b", "eq", 1) == []
