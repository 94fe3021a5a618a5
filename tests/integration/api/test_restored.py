"""A restored backup of Postgres answers nothing until what was decided since is in force again."""

from collections.abc import Callable

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings
from tests.integration.backups import Backup, Restore, backup, restore

from .conftest import client_of

__all__ = ["backup", "restore"]
MODEL = "/v1/models/m"
POLICY = f"{MODEL}/retention-policy"
KEPT = {"rules": [{"keep_input": "P1D", "keep_inference": "P2D"}]}


async def test_policies_and_holds_are_in_force_again(
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
    assert (await client.put(POLICY, json=KEPT)).status_code == 200
    placed = await client.post("/v1/holds", json=hold | {"inference_ids": ["b"]})
    assert placed.status_code == 201
    assert (await client.put("/v1/models/n", json={})).status_code == 201
    everything = (await client.post("/v1/holds", json=hold | {"model_id": "n"})).json()
    why = {"reason": "over"}
    released = await client.delete(f"/v1/holds/{old['id']}", params=why)
    assert released.json()["state"] == "released"

    async with client_of(create_app(settings(), older, blobs)) as again:
        for path in (POLICY, "/v1/holds", "/v1/models", "/v1/audit"):
            refused = await again.get(path)
            assert refused.status_code == 503
            assert refused.json()["type"] == "/docs/errors#ledger-apart"
            assert "inference-store ledger replay" in refused.json()["detail"]
        refused = await again.put(POLICY, json=KEPT)
        assert refused.json()["type"] == "/docs/errors#ledger-apart"
        assert await ledger_of(older, blobs).replay() == 4

    async with client_of(create_app(settings(), older, blobs)) as again:
        for path in (POLICY, f"/v1/holds/{old['id']}", f"/v1/holds/{placed.json()['id']}"):
            before, after = await client.get(path), await again.get(path)
            assert after.json() == before.json()
            assert after.headers["etag"] == before.headers["etag"]
        # its model was registered after the backup, and is there again
        there = (await again.get(f"/v1/holds/{everything['id']}")).json()
        assert (there["model_id"], there["state"]) == ("n", "in_force")
        history = (await again.get(f"/v1/holds/{old['id']}/history")).json()
        assert [one["change"] for one in history["items"]] == ["placed", "released"]
        audited = (await again.get("/v1/audit", params={"action": "hold_released"})).json()
        assert [entry["detail"]["reason"] for entry in audited["items"]] == ["over"]


def ledger_of(engine: AsyncEngine, blobs: Blobs) -> Ledger:
    return Ledger(engine, blobs, prefix="ledger/")


async def test_a_running_api_whose_database_is_set_back_writes_nothing(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs
) -> None:
    """The writer finds out by itself: the number that it would write is taken."""
    assert (await client.put(MODEL, json={})).status_code == 201
    assert (await client.put(POLICY, json=KEPT)).status_code == 200
    async with engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE ledger_head SET number = 0, hash = ''")
    hold = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": ["a"]}
    refused = await client.post("/v1/holds", json=hold)
    assert (refused.status_code, refused.json()["type"]) == (503, "/docs/errors#ledger-apart")
    assert (await client.get("/v1/holds")).json()["items"] == []
    assert await ledger_of(engine, blobs).replay() == 1
    assert (await client.post("/v1/holds", json=hold)).status_code == 201
