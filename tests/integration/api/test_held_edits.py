"""An edit of metadata that would end the match of a hold is refused and changes nothing."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, at, store

_ONE = "/v1/models/model/inferences/one"
_BLOB = b'[{"key": "camera", "type": "string", "value": "hallway"}]'


@pytest.fixture
async def key(engine: AsyncEngine, blobs: Blobs, bucket: str) -> StorageKey:
    """The key of the metadata blob of a stored inference."""
    storage_key = StorageKey(bucket, "m")
    blobs.put(storage_key, _BLOB, content_type="application/json")
    items = [("camera", "string", "hallway")]
    await store(engine, NewInference("one", at(0), items, keys=(None, None, f"{bucket}/m")))
    return storage_key


async def _place_hold(client: httpx.AsyncClient, filter: str, **types: str) -> str:
    body = {"name": "incident", "reason": "x", "model_id": "model", "filter": filter}
    answer = await client.post("/v1/holds", json={**body, "types": types})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _edit(client: httpx.AsyncClient, **items: Any) -> httpx.Response:
    metadata = [{"key": name, "type": "string", "value": value} for name, value in items.items()]
    return await client.post(f"{_ONE}/metadata", json={"metadata": metadata})


@pytest.mark.parametrize(
    ("filter", "edit"),
    [
        ("camera = 'hallway'", {"camera": "garden"}),
        # NULL protects the inference, and a value that makes it FALSE would end that
        ("lens = 'wide'", {"lens": "narrow"}),
        ("revision = 1", {"anything": "x"}),
    ],
)
async def test_an_edit_that_would_end_a_match(
    client: httpx.AsyncClient, blobs: Blobs, key: StorageKey, filter: str, edit: dict[str, str]
) -> None:
    id = await _place_hold(client, filter, **({"lens": "string"} if "lens" in filter else {}))
    refused = await _edit(client, **edit)
    assert (refused.status_code, refused.json()["type"]) == (409, "/docs/errors#held")
    assert id in refused.json()["detail"]
    assert "incident" in refused.json()["detail"]
    inference = (await client.get(_ONE, params={"include": "metadata"})).json()
    assert [(item["key"], item["value"]) for item in inference["metadata"]] == [
        ("camera", "hallway")
    ]
    assert blobs.get(key, limit=1000) == _BLOB
    assert (await client.delete(f"/v1/holds/{id}", params={"reason": "over"})).status_code == 200
    assert (await _edit(client, **edit)).status_code == 200


@pytest.mark.usefixtures("key")
async def test_accepts_edit_that_ends_no_match(client: httpx.AsyncClient) -> None:
    await _place_hold(client, "camera = 'hallway'")
    await _place_hold(client, "camera = 'garden'")
    answer = await _edit(client, reviewed="yes")
    assert (answer.status_code, answer.json()["revision"]) == (200, 2)
    # The second hold would begin to match, but the first one would end.
    assert (await _edit(client, camera="garden")).status_code == 409


@pytest.mark.usefixtures("key")
async def test_held_inference_is_not_erased(client: httpx.AsyncClient) -> None:
    await _place_hold(client, "camera = 'hallway'")
    answer = await client.delete(_ONE)
    assert answer.status_code == 202
    assert (await client.get(_ONE)).status_code == 200
    assert (await client.get(f"{_ONE}/metadata")).content == _BLOB
