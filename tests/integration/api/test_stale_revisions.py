"""Who changes something that has changed since they read it is told so, and changes nothing."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored import Made, at, store

MODEL = "/v1/models/model"
HOLD = {"name": "hallway", "reason": "file 47", "model_id": "model", "inference_ids": ["a"]}
POLICY = {"rules": [{"keep_input": "forever", "keep_inference": "forever"}]}
METADATA = [{"key": "camera", "type": "string", "value": "b"}]


@pytest.fixture
async def paths(client: httpx.AsyncClient, engine: AsyncEngine) -> dict[str, str]:
    """Something of each kind, in its first revision, and where it is."""
    await store(engine, Made("a", at(0), [("camera", "string", "a")]))
    for path, body in ((MODEL, {}), (f"{MODEL}/retention-policy", POLICY)):
        assert (await client.put(path, json=body)).status_code in {200, 201}
    placed = await client.post("/v1/holds", json=HOLD)
    return {
        "model": MODEL,
        "policy": f"{MODEL}/retention-policy",
        "hold": f"/v1/holds/{placed.json()['id']}",
        "inference": f"{MODEL}/inferences/a",
    }


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"method": "PUT", "json": {"name": "other"}},
    "policy": {"method": "PUT", "json": POLICY},
    "hold": {"method": "PUT", "json": HOLD | {"reason": "file 48"}},
    "inference": {"method": "POST", "json": {"metadata": METADATA}},
}
RELEASE = {"method": "DELETE", "params": {"reason": "closed"}}


@pytest.mark.parametrize(
    ("of", "late"), [*CHANGES.items(), ("hold", RELEASE)], ids=[*CHANGES, "release"]
)
async def test_the_slower_of_two_is_told(
    client: httpx.AsyncClient, paths: dict[str, str], of: str, late: dict[str, Any]
) -> None:
    url = paths[of] + ("/metadata" if of == "inference" else "")
    read = (await client.get(paths[of])).json()
    seen = {"If-Match": f'"{read["revision"]}"'}
    first = await client.request(url=url, headers=seen, **CHANGES[of])
    assert first.status_code == 200, first.text
    refused = await client.request(url=url, headers=seen, **late)
    assert refused.status_code == 412, refused.text
    assert (await client.get(paths[of])).json()["revision"] == read["revision"] + 1
