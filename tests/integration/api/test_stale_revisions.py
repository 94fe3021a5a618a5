"""A change that is based on a stale revision is refused and changes nothing."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store

MODEL = "/v1/models/model"
HOLD = {"name": "hallway", "reason": "file 47", "model_id": "model", "inference_ids": ["a"]}
POLICY = {"rules": [{"keep_input": "forever", "keep_inference": "forever"}]}
VIEW = {"name": "hallway", "model_id": "model", "filter": "camera = 'a'"}
METADATA = [{"key": "camera", "type": "string", "value": "b"}]


@pytest.fixture
async def paths(client: httpx.AsyncClient, engine: AsyncEngine) -> dict[str, str]:
    """The paths of one resource of each kind, each in its first revision."""
    await store(engine, NewInference("a", at(0), [("camera", "string", "a")]))
    for path, body in ((MODEL, {}), (f"{MODEL}/retention-policy", POLICY)):
        assert (await client.put(path, json=body)).status_code in {200, 201}
    placed = await client.post("/v1/holds", json=HOLD)
    saved = await client.post("/v1/views", json=VIEW)
    return {
        "model": MODEL,
        "policy": f"{MODEL}/retention-policy",
        "hold": f"/v1/holds/{placed.json()['id']}",
        "inference": f"{MODEL}/inferences/a",
        "view": f"/v1/views/{saved.json()['id']}",
    }


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"method": "PUT", "json": {"name": "other"}},
    "policy": {"method": "PUT", "json": POLICY},
    "hold": {"method": "PUT", "json": HOLD | {"reason": "file 48"}},
    "inference": {"method": "POST", "json": {"metadata": METADATA}},
    "view": {"method": "PATCH", "json": {"name": "yard"}},
}
RELEASE = {"method": "DELETE", "params": {"reason": "closed"}}


@pytest.mark.parametrize(
    ("kind", "late"),
    [*CHANGES.items(), ("hold", RELEASE), ("view", {"method": "DELETE"})],
    ids=[*CHANGES, "release", "deletion"],
)
async def test_the_slower_of_two_is_told(
    client: httpx.AsyncClient, paths: dict[str, str], kind: str, late: dict[str, Any]
) -> None:
    url = paths[kind] + ("/metadata" if kind == "inference" else "")
    read = (await client.get(paths[kind])).json()
    headers = {"If-Match": f'"{read["revision"]}"'}
    first = await client.request(url=url, headers=headers, **CHANGES[kind])
    assert first.status_code == 200, first.text
    refused = await client.request(url=url, headers=headers, **late)
    assert refused.status_code == 412, refused.text
    assert (await client.get(paths[kind])).json()["revision"] == read["revision"] + 1
