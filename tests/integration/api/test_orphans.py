"""Erasing the orphans of a reconciliation through the api."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from inference_store.operations.reconcile import reconciliations
from inference_store.operations.reconcile.reconciliations import Finding

from .conftest import Api


async def _add_report(api: Api, **values: Any) -> str:
    """Add a report of three orphans; return the path to their erasures."""
    now = datetime.now(UTC)
    done = {"state": "done", "finished_at": now, "orphans_before": now - timedelta(days=1)}
    orphans = [Finding("orphan", f"s3://{api.bucket}/p/{n}", bytes=7) for n in range(3)]
    async with api.engine.begin() as connection:
        report = await reconciliations.request_reconciliation(
            connection, model_id=None, cause="request"
        )
        await reconciliations.update_reconciliation(connection, report.id, **done | values)
        await reconciliations.add_findings(connection, report.id, orphans)
    return f"/v1/reconciliations/{report.id}/erasures"


async def test_counts_orphans_and_erases_them_once(api: Api) -> None:
    path = await _add_report(api)
    counts = {"objects": 3, "bytes": 21, "held": 0, "kept": 0, "partial": False}
    assert await api.ask(path, {"dry_run": True}) == counts
    answer = await api.post(path, json={})
    erasure = answer.json()
    assert (answer.status_code, erasure["cause"], erasure["scope"]) == (202, "orphans", "object")
    assert erasure["asked"]["report"] in path
    assert (await api.read(answer.headers["Location"]))["id"] == erasure["id"]
    assert erasure["id"] in (await api.ask(path, {}, status=409))["detail"]


async def test_rejects_old_and_unknown_reports(api: Api) -> None:
    old = await _add_report(api, finished_at=datetime.now(UTC) - timedelta(days=2))
    nothing = await _add_report(api, orphans_before=None)
    await api.ask(old, {}, status=409)
    await api.ask(nothing, {}, status=409)
    await api.ask(f"/v1/reconciliations/{uuid4()}/erasures", {}, status=404)


async def test_warns_about_a_model_that_is_not_registered(api: Api) -> None:
    """It is compared all the same: its registration may be what was lost."""
    await api.call("PUT", "/v1/models/hall", {})
    warning = (
        "There is no model 'hal'. The nearest are hall."
        " If the bucket has no object of it either, this fails."
    )
    for model_id, warnings in (("hall", []), ("hal", [warning])):
        answer = await api.ask("/v1/reconciliations", {"model_id": model_id}, status=202)
        assert answer["warnings"] == warnings, model_id
