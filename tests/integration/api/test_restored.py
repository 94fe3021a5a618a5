"""A restored backup answers nothing until the ledger of later decisions is replayed."""

from collections.abc import Callable

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.backups import Backup, Restore, backup, restore

from .conftest import make_client

__all__ = ["backup", "restore"]
MODEL = "/v1/models/m"
POLICY = f"{MODEL}/retention-policy"
RULES = {"rules": [{"keep_input": "P1D", "keep_inference": "P2D"}]}


async def test_replay_restores_policies_and_holds(
    client: httpx.AsyncClient,
    backup: Backup,
    restore: Restore,
    settings: Callable[..., ApiSettings],
    blobs: Blobs,
) -> None:
    assert (await client.put(MODEL, json={})).status_code == 201
    hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": ["a"]}
    old = (await client.post("/v1/holds", json=hold)).json()
    older = await restore(backup())
    assert (await client.put(POLICY, json=RULES)).status_code == 200
    placed = await client.post("/v1/holds", json=hold | {"inference_ids": ["b"]})
    assert placed.status_code == 201
    assert (await client.put("/v1/models/n", json={})).status_code == 201
    everything = (await client.post("/v1/holds", json=hold | {"model_id": "n"})).json()
    why = {"reason": "over"}
    released = await client.delete(f"/v1/holds/{old['id']}", params=why)
    assert released.json()["state"] == "released"

    async with make_client(create_app(settings(), older, blobs)) as again:
        for path in (POLICY, "/v1/holds", "/v1/models", "/v1/audit"):
            refused = await again.get(path)
            assert refused.status_code == 503
            assert refused.json()["type"] == "/docs/errors#ledger-apart"
            assert "inference-store ledger replay" in refused.json()["detail"]
        refused = await again.put(POLICY, json=RULES)
        assert refused.json()["type"] == "/docs/errors#ledger-apart"
        assert await make_ledger(older, blobs).replay() == 4

    async with make_client(create_app(settings(), older, blobs)) as again:
        for path in (POLICY, f"/v1/holds/{old['id']}", f"/v1/holds/{placed.json()['id']}"):
            before, after = await client.get(path), await again.get(path)
            assert after.json() == before.json()
            assert after.headers["etag"] == before.headers["etag"]
        # its model was registered after the backup, and exists again
        restored = (await again.get(f"/v1/holds/{everything['id']}")).json()
        assert (restored["model_id"], restored["state"]) == ("n", "in_force")
        history = (await again.get(f"/v1/holds/{old['id']}/history")).json()
        assert [revision["change"] for revision in history["items"]] == ["placed", "released"]
        audited = (await again.get("/v1/audit", params={"action": "hold_released"})).json()
        assert [entry["detail"]["reason"] for entry in audited["items"]] == ["over"]


def make_ledger(engine: AsyncEngine, blobs: Blobs) -> Ledger:
    return Ledger(engine, blobs, prefix="ledger/")


async def test_running_api_refuses_writes_to_a_rolled_back_database(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs
) -> None:
    """The writer notices, since the number that it would write is taken."""
    assert (await client.put(MODEL, json={})).status_code == 201
    assert (await client.put(POLICY, json=RULES)).status_code == 200
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE ledger_head SET number = 0, hash = ''")
    hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": ["a"]}
    refused = await client.post("/v1/holds", json=hold)
    assert (refused.status_code, refused.json()["type"]) == (503, "/docs/errors#ledger-apart")
    assert (await client.get("/v1/holds")).json()["items"] == []
    assert await make_ledger(engine, blobs).replay() == 1
    assert (await client.post("/v1/holds", json=hold)).status_code == 201
