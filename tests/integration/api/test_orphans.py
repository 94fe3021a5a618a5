"""Erasing the orphans of a reconciliation through the api."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.operations.reconcile import reconciliations
from inference_store.operations.reconcile.reconciliations import Finding


async def _add_report(connection: AsyncConnection, bucket: str, **values: Any) -> UUID:
    reconciliation = await reconciliations.request_reconciliation(
        connection, model_id=None, cause="request"
    )
    now = datetime.now(UTC)
    done = {"state": "done", "finished_at": now, "orphans_before": now - timedelta(days=1)}
    await reconciliations.update_reconciliation(connection, reconciliation.id, **done | values)
    keys = [f"s3://{bucket}/p/{number}" for number in range(3)]
    await reconciliations.add_findings(
        connection, reconciliation.id, [Finding("orphan", k, bytes=7) for k in keys]
    )
    return reconciliation.id


async def test_counts_orphans_and_erases_them_once(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    async with engine.begin() as connection:
        path = f"/v1/reconciliations/{await _add_report(connection, bucket)}/erasures"
    dry_run = await client.post(path, json={"dry_run": True})
    counts = {"objects": 3, "bytes": 21, "held": 0, "kept": 0, "partial": False}
    assert (dry_run.status_code, dry_run.json()) == (200, counts)
    answer = await client.post(path, json={})
    erasure = answer.json()
    assert (answer.status_code, erasure["cause"], erasure["scope"]) == (202, "orphans", "object")
    assert erasure["asked"]["report"] in path
    read = await client.get(answer.headers["Location"])
    assert read.json()["id"] == erasure["id"]
    again = await client.post(path, json={})
    assert (again.status_code, erasure["id"] in again.json()["detail"]) == (409, True)


async def test_rejects_old_and_unknown_reports(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    async with engine.begin() as connection:
        before = datetime.now(UTC) - timedelta(days=2)
        old = await _add_report(connection, bucket, finished_at=before)
        nothing = await _add_report(connection, bucket, orphans_before=None)
    codes = {old: 409, nothing: 409, uuid4(): 404}
    for id, code in codes.items():
        refused = await client.post(f"/v1/reconciliations/{id}/erasures", json={})
        assert refused.status_code == code


async def test_warns_about_a_model_that_is_not_registered(client: httpx.AsyncClient) -> None:
    """It is compared all the same: its registration may be what was lost."""
    await client.put("/v1/models/hall", json={})
    for model_id, warnings in (
        ("hall", []),
        (
            "hal",
            [
                "There is no model 'hal'. The nearest are hall."
                " If the bucket has no object of it either, this fails."
            ],
        ),
    ):
        answer = await client.post("/v1/reconciliations", json={"model_id": model_id})
        assert (answer.status_code, answer.json()["warnings"]) == (202, warnings)
