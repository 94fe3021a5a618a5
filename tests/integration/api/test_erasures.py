"""Erasures by filter, ids or subject: requested through the api, carried out by the service."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from inference_store.index.tables import inference, metadata_number
from inference_store.operations.reconcile import stored_reports
from inference_store.operations.reconcile.stored_reports import Finding

from . import people
from .conftest import Api

pytestmark = pytest.mark.usefixtures("people")


_INFERENCES = "/v1/models/model/inferences"


async def list_inference_ids(api: Api) -> set[str]:
    return set(await api.fetch(select(inference.c.inference_id)))


async def test_erases_only_what_matches(api: Api) -> None:
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"filter": "person = 'ann' AND n > 0"}, {"i2", "i4"}),
        ({"filter": {"op": ">=", "args": [{"property": "n"}, 4]}}, {"i4", "i5"}),
        (people.SUBJECT, {"i0", "i2", "i4"}),
        ({"subject": {"key": "n", "type": "int", "value": "3"}}, {"i3"}),
        ({"inference_ids": ["i1", "i5"]}, {"i1", "i5"}),
    ]
    requested = []
    for number, (body, gone) in enumerate(cases):
        await people.store_people(api, f"case-{number}")
        path = f"/v1/models/case-{number}/erasures"
        counts = await api.ask(path, {**body, "dry_run": True})
        assert (counts["inferences"], counts["objects"]) == (len(gone), len(gone)), body
        requested.append(await people.request_erasure(api, body, path))
        assert (requested[-1]["state"], requested[-1]["inferences"]) == ("pending", 0), body
    await api.run_retention()
    for number, (body, gone) in enumerate(cases):
        erasure = await people.read_erasure(api, requested[number])
        progress = erasure["progress"]
        assert (erasure["state"], progress["left"]) == ("deleted", 0), erasure
        counted = (erasure["inferences"], erasure["objects"], progress["marked"])
        assert counted == (len(gone),) * 3, body
        left = await api.find_ids(f"/v1/models/case-{number}/inferences/query")
        assert set(left) == {f"i{n}" for n in range(6)} - gone, body


async def test_keeps_inferences_whose_keys_are_not_all_indexed(api: Api) -> None:
    """The index does not know all keys of i0 and i1, so it cannot tell that `n` is missing."""
    capped = inference.update().where(inference.c.inference_id.in_(["i0", "i1"]))
    await api.execute(capped.values(flags=["metadata_keys_capped"]), metadata_number.delete())
    counts = await api.ask(people.ERASURES, {"filter": "n IS NULL", "dry_run": True})
    assert (counts["inferences"], counts["undecided"]) == (4, 2)
    assert [model["undecided"] for model in counts["models"]] == [2]
    counts = await api.ask(people.ERASURES, {"filter": "NOT (person = 'bob')", "dry_run": True})
    # i0 may have been sent bob's name as well
    assert (counts["inferences"], counts["undecided"]) == (2, 1)
    await people.erase(api, {"filter": "n IS NULL"})
    assert await list_inference_ids(api) == {"i0", "i1", "i9"}


async def test_erases_subject_from_every_model(api: Api) -> None:
    erasure = await people.erase(api, people.SUBJECT, people.ACROSS)
    assert (erasure["model_ids"], erasure["model_id"]) == (["model", "other"], None)
    assert erasure["inferences"] == 4
    assert await list_inference_ids(api) == {"i1", "i3", "i5"}


async def test_refuses_or_reports_what_nothing_has(api: Api) -> None:
    await api.ask(people.ERASURES, {"inference_ids": ["nobody", "no one"]}, status=404)
    some = await people.request_erasure(api, {"inference_ids": ["i1", "nobody"]})
    assert some["not_found"] == ["nobody"]
    slip = await api.ask(people.ERASURES, {"filter": "persn = 'ann'"}, status=422)
    assert "person" in str(slip)
    nothing = await people.erase(api, {"subject": {"key": "person", "value": "nobody"}})
    assert (nothing["state"], nothing["inferences"]) == ("deleted", 0)
    assert "No stored inference matched" in nothing["message"]
    for body in ({}, {"filter": "n > 1", "inference_ids": ["i1"]}):
        refused = await api.ask(people.ERASURES, body, status=422)
        assert "exactly one of filter, inference_ids, subject" in str(refused), body


async def test_finds_inferences_hidden_by_another_erasure(api: Api) -> None:
    """The first erasures are cancelled, and the others erase what the first had hidden."""
    uid_3, uid_5 = (f"uid:{people.make_person(n, 'bob').uid}" for n in (3, 5))
    hiding = [await api.call("DELETE", f"{_INFERENCES}/i{n}") for n in (1, 2, 3, 5)]
    body: dict[str, Any] = {"inference_ids": ["i5", uid_5, "nobody"]}
    counts = await api.ask(people.ERASURES, {**body, "dry_run": True})
    assert (counts["inferences"], counts["not_found"]) == (1, ["nobody"])
    erasing = [await people.request_erasure(api, body)]
    assert erasing[0]["not_found"] == ["nobody"]
    erasing += [
        await api.call("DELETE", f"{_INFERENCES}/{id}", status=202) for id in ("i1", "i2", uid_3)
    ]
    for erasure in hiding:
        await api.ask(f"{people.ACROSS}/{erasure['id']}/cancel", None, status=202)
    await api.run_retention()
    for erasure in hiding:
        assert (await people.read_erasure(api, erasure))["state"] == "cancelled"
    assert [(await people.read_erasure(api, erasure))["inferences"] for erasure in erasing] == [
        1
    ] * 4
    assert await list_inference_ids(api) == {"i0", "i4", "i9"}
    await api.call("DELETE", f"{_INFERENCES}/i1", status=404)


async def test_an_erasure_can_be_cancelled_until_deletion_began(api: Api) -> None:
    everything = await list_inference_ids(api)
    erasure = await api.call("DELETE", f"{_INFERENCES}/i1")
    await api.read(f"{_INFERENCES}/i1", status=404)
    path = f"{people.ACROSS}/{erasure['id']}/cancel"
    assert (await api.ask(path, None, status=202))["state"] == "cancelling"
    await api.run_retention()
    assert (await people.read_erasure(api, erasure))["state"] == "cancelled"
    assert await list_inference_ids(api) == everything
    await api.read(f"{_INFERENCES}/i1")
    assert (await api.ask(path, None, status=202))["state"] == "cancelled"
    erasure = await people.erase(api, {"inference_ids": ["i1"]})
    refused = await api.ask(f"{people.ACROSS}/{erasure['id']}/cancel", None, status=409)
    assert "begun to delete" in refused["detail"]


async def test_gives_up_held_inferences(api: Api) -> None:
    hold = await people.place_hold(api, inference_ids=["i1"])
    erasure = await people.request_erasure(api, {"inference_ids": ["i1", "i3"]})
    path = f"{people.ACROSS}/{erasure['id']}/give-up"
    await api.ask(path, {}, status=422)
    await api.ask(path, {"reason": "long"}, status=409)
    await api.run_retention()
    answer = await api.ask(path, {"reason": "long"}, status=202)
    assert answer["state"] == "giving_up"
    assert answer["given_up"] == {"by": "anyone", "held": []}
    await people.release_hold(api, hold)
    await api.run_retention()
    ended = await people.read_erasure(api, erasure)
    assert (ended["state"], ended["inferences"], ended["progress"]["held"]) == ("deleted", 1, 0)
    assert ended["given_up"]["held"] == [{"hold": hold, "inferences": 1}]
    assert "i1" in await list_inference_ids(api)
    audited = await api.read("/v1/audit", action="erasure_rest_given_up")
    assert [entry["detail"]["reason"] for entry in audited["items"]] == ["long"]


async def _add_report(api: Api, **values: Any) -> str:
    """Add a report of three orphans; return the path to their erasures."""
    now = datetime.now(UTC)
    done = {"state": "done", "finished_at": now, "orphans_before": now - timedelta(days=1)}
    orphans = [Finding("orphan", f"s3://{api.bucket}/p/{n}", bytes=7) for n in range(3)]
    async with api.engine.begin() as connection:
        report = await stored_reports.request_reconciliation(
            connection, model_id=None, cause="request"
        )
        await stored_reports.update_reconciliation(connection, report.id, **done | values)
        await stored_reports.add_findings(connection, report.id, orphans)
    return f"/v1/reconciliations/{report.id}/erasures"


async def test_counts_orphans_of_new_reports_and_erases_them_once(api: Api) -> None:
    old = await _add_report(api, finished_at=datetime.now(UTC) - timedelta(days=2))
    nothing = await _add_report(api, orphans_before=None)
    await api.ask(old, {}, status=409)
    await api.ask(nothing, {}, status=409)
    await api.ask(f"/v1/reconciliations/{uuid4()}/erasures", {}, status=404)
    path = await _add_report(api)
    counts = {"objects": 3, "bytes": 21, "held": 0, "kept": 0, "partial": False}
    assert await api.ask(path, {"dry_run": True}) == counts
    answer = await api.post(path, json={})
    erasure = answer.json()
    assert (answer.status_code, erasure["cause"], erasure["scope"]) == (202, "orphans", "object")
    assert erasure["asked"]["report"] in path
    assert (await api.read(answer.headers["Location"]))["id"] == erasure["id"]
    assert erasure["id"] in (await api.ask(path, {}, status=409))["detail"]


async def test_warns_about_a_model_that_is_not_registered(api: Api) -> None:
    """It is compared all the same: its registration may be what was lost."""
    await api.call("PUT", "/v1/models/hallway", {})
    for model_id in ("hallway", "hallwy"):
        answer = await api.ask("/v1/reconciliations", {"model_id": model_id}, status=202)
        if model_id == "hallway":
            assert answer["warnings"] == []
            continue
        [warning] = answer["warnings"]
        assert warning.startswith("There is no model 'hallwy'. The nearest are hallway"), warning
        assert warning.endswith("If the bucket has no object of it either, this fails."), warning
