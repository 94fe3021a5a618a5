"""The orphans of a reconciliation, erased through the api."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.operations.reconcile import reconciliations
from inference_store.operations.reconcile.reconciliations import Finding


async def _report(connection: AsyncConnection, bucket: str, **values: Any) -> UUID:
    one = await reconciliations.request(connection, model_id=None, cause="request")
    now = datetime.now(UTC)
    done = {"state": "done", "finished_at": now, "orphans_before": now - timedelta(days=1)}
    await reconciliations.update(connection, one.id, **done | values)
    keys = [f"s3://{bucket}/p/{number}" for number in range(3)]
    await reconciliations.add_findings(
        connection, one.id, [Finding("orphan", k, bytes=7) for k in keys]
    )
    return one.id


async def test_they_are_counted_and_then_asked_for_once(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    async with engine.begin() as connection:
        path = f"/v1/reconciliations/{await _report(connection, bucket)}/erasures"
    told = await client.post(path, json={"dry_run": True})
    counts = {"objects": 3, "bytes": 21, "held": 0, "kept": 0, "partial": False}
    assert (told.status_code, told.json()) == (200, counts)
    made = await client.post(path, json={})
    one = made.json()
    assert (made.status_code, one["cause"], one["scope"]) == (202, "orphans", "object")
    assert one["asked"]["report"] in path
    followed = await client.get(made.headers["Location"])
    assert followed.json()["id"] == one["id"]
    again = await client.post(path, json={})
    assert (again.status_code, one["id"] in again.json()["detail"]) == (409, True)


async def test_what_is_too_old_or_is_not_there_is_refused(
    client: httpx.AsyncClient, engine: AsyncEngine, bucket: str
) -> None:
    async with engine.begin() as connection:
        before = datetime.now(UTC) - timedelta(days=2)
        old = await _report(connection, bucket, finished_at=before)
        nothing = await _report(connection, bucket, orphans_before=None)
    codes = {old: 409, nothing: 409, uuid4(): 404}
    for id, code in codes.items():
        refused = await client.post(f"/v1/reconciliations/{id}/erasures", json={})
        assert refused.status_code == code
