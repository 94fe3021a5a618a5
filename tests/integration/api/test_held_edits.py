"""An edit of metadata that would end a hold's match is refused, and changes nothing."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored import Made, at, store

_ONE = "/v1/models/model/inferences/one"
_BLOB = b'[{"key": "camera", "type": "string", "value": "hallway"}]'


@pytest.fixture
async def key(engine: AsyncEngine, blobs: Blobs, bucket: str) -> StorageKey:
    """Of the metadata blob of an inference that is stored."""
    place = StorageKey(bucket, "m")
    blobs.put(place, _BLOB, content_type="application/json")
    items = [("camera", "string", "hallway")]
    await store(engine, Made("one", at(0), items, keys=(None, None, f"{bucket}/m")))
    return place


async def _hold(client: httpx.AsyncClient, filter: str, **types: str) -> str:
    body = {"name": "incident", "reason": "x", "model_id": "model", "filter": filter}
    answer = await client.post("/v1/holds", json={**body, "types": types})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _change(client: httpx.AsyncClient, **items: Any) -> httpx.Response:
    metadata = [{"key": name, "type": "string", "value": value} for name, value in items.items()]
    return await client.post(f"{_ONE}/metadata", json={"metadata": metadata})


@pytest.mark.parametrize(
    ("filter", "edit"),
    [
        ("camera = 'hallway'", {"camera": "garden"}),
        # NULL protects: a value that makes it FALSE ends that
        ("lens = 'wide'", {"lens": "narrow"}),
        ("revision = 1", {"anything": "x"}),
    ],
)
async def test_an_edit_that_would_end_a_match(
    client: httpx.AsyncClient, blobs: Blobs, key: StorageKey, filter: str, edit: dict[str, str]
) -> None:
    id = await _hold(client, filter, **({"lens": "string"} if "lens" in filter else {}))
    refused = await _change(client, **edit)
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs/errors#held")
    assert id in refused.json()["detail"]
    assert "incident" in refused.json()["detail"]
    shown = (await client.get(_ONE, params={"include": "metadata"})).json()
    assert [(each["key"], each["value"]) for each in shown["metadata"]] == [("camera", "hallway")]
    assert blobs.get(key, limit=1000) == _BLOB
    assert (await client.delete(f"/v1/holds/{id}", params={"reason": "over"})).status_code == 200
    assert (await _change(client, **edit)).status_code == 200


@pytest.mark.usefixtures("key")
async def test_an_edit_that_ends_none_is_made(client: httpx.AsyncClient) -> None:
    await _hold(client, "camera = 'hallway'")
    await _hold(client, "camera = 'garden'")
    answer = await _change(client, reviewed="yes")
    assert (answer.status_code, answer.json()["revision"]) == (200, 2)
    # It begins to be held by the second, and stops to be by the first.
    assert (await _change(client, camera="garden")).status_code == 409


@pytest.mark.usefixtures("key")
async def test_an_inference_that_is_asked_to_go_stays(client: httpx.AsyncClient) -> None:
    await _hold(client, "camera = 'hallway'")
    asked = await client.delete(_ONE)
    assert asked.status_code == 202
    assert (await client.get(_ONE)).status_code == 200
    assert (await client.get(f"{_ONE}/metadata")).content == _BLOB
