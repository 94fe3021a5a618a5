"""A restored backup answers nothing until the ledger of later decisions is replayed."""

from inference_store.api.app import create_app
from inference_store.erasure.ledger import Ledger
from tests.integration.backups import Backup, Restore, backup, restore

from .conftest import Api, make_client

__all__ = ["backup", "restore"]
MODEL = "/v1/models/m"
POLICY = f"{MODEL}/retention-policy"
RULES = {"rules": [{"keep_input": "P1D", "keep_inference": "P2D"}]}
HOLD = {"name": "n", "reason": "r", "model_id": "m", "inference_ids": ["a"]}


async def test_replay_restores_policies_and_holds(
    api: Api, backup: Backup, restore: Restore
) -> None:
    await api.call("PUT", MODEL, {})
    old = await api.ask("/v1/holds", HOLD, status=201)
    older = await restore(backup())
    await api.call("PUT", POLICY, RULES, status=200)
    placed = await api.ask("/v1/holds", HOLD | {"inference_ids": ["b"]}, status=201)
    await api.call("PUT", "/v1/models/n", {})
    everything = await api.ask("/v1/holds", HOLD | {"model_id": "n"}, status=201)
    released = await api.call("DELETE", f"/v1/holds/{old['id']}", params={"reason": "over"})
    assert released["state"] == "released"

    restored_app = create_app(api.app.state.settings, older, api.blobs)
    async with make_client(restored_app) as again:
        for path in (POLICY, "/v1/holds", "/v1/models", "/v1/audit"):
            refused = await again.read(path, status=503)
            assert refused["type"] == "/docs/errors#ledger-apart", path
            assert "inference-store ledger replay" in refused["detail"], path
        refused = await again.call("PUT", POLICY, RULES, status=503)
        assert refused["type"] == "/docs/errors#ledger-apart"
        assert await Ledger(older, api.blobs, prefix="ledger/").replay() == 4

    async with make_client(create_app(api.app.state.settings, older, api.blobs)) as again:
        for path in (POLICY, f"/v1/holds/{old['id']}", f"/v1/holds/{placed['id']}"):
            before, after = await api.get(path), await again.get(path)
            assert after.json() == before.json()
            assert after.headers["etag"] == before.headers["etag"]
        # its model was registered after the backup, and exists again
        restored = await again.read(f"/v1/holds/{everything['id']}")
        assert (restored["model_id"], restored["state"]) == ("n", "in_force")
        history = await again.read(f"/v1/holds/{old['id']}/history")
        assert [revision["change"] for revision in history["items"]] == ["placed", "released"]
        audited = await again.read("/v1/audit", action="hold_released")
        assert [entry["detail"]["reason"] for entry in audited["items"]] == ["over"]


async def test_running_api_refuses_writes_to_a_rolled_back_database(api: Api) -> None:
    """The writer notices, since the number that it would write is taken."""
    await api.call("PUT", MODEL, {})
    await api.call("PUT", POLICY, RULES)
    await api.execute("UPDATE ledger_head SET number = 0, hash = ''")
    refused = await api.ask("/v1/holds", HOLD, status=503)
    assert refused["type"] == "/docs/errors#ledger-apart"
    assert (await api.read("/v1/holds"))["items"] == []
    assert await Ledger(api.engine, api.blobs, prefix="ledger/").replay() == 1
    await api.ask("/v1/holds", HOLD, status=201)
