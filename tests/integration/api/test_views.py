"""Views: queries about a model, saved under a name, opened, changed and deleted."""

from typing import Any

import pytest
from sqlalchemy import delete

from inference_store.index import saved_views
from inference_store.index.tables import metadata_key_delta, metadata_key_seen, model_key
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

VIEWS = "/v1/views"
VIEW = {"name": "late frames", "model_id": "model", "filter": "frame_number > 9000"}


@pytest.fixture(autouse=True)
async def store_inference(api: Api) -> None:
    await api.store(NewInference("a", at(0), [("frame_number", "int", "9001")]))


async def save_view(api: Api, **changes: Any) -> dict[str, Any]:
    return dict(await api.ask(VIEWS, VIEW | changes, status=201))


async def list_names(api: Api, query: str = "") -> list[str]:
    return [view["name"] for view in (await api.read(f"{VIEWS}{query}"))["items"]]


async def test_reads_view_as_saved_and_its_defaults(api: Api) -> None:
    whole = {
        "time": "2026-11-01T00:00:00Z..",
        "sort": "-frame_number",
        "view": "table",
        "columns": ["received_at", "metadata.frame_number"],
        "shared": "project",
    }
    answer = await api.post(VIEWS, json=VIEW | whole)
    assert answer.status_code == 201, answer.text
    read = await api.get(answer.headers["Location"])
    assert (read.headers["ETag"], read.json()) == ('"1"', answer.json())
    view = read.json()
    assert view | VIEW | whole == view
    assert (view["created_by"], view["faults"], view["may_change"]) == ("anyone", [], True)
    view = await api.ask(VIEWS, {"name": "all", "model_id": "model"}, status=201)
    assert (view["filter"], view["time"], view["sort"]) == (None, None, "-received_at")
    assert (view["view"], view["columns"], view["shared"]) == ("grid", [], "private")


async def test_rejects_invalid_views(api: Api) -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"filter": "frame_numer > 9000"}, 422, "frame_number"),
        ({"filter": "frame_number >"}, 422, ""),
        ({"sort": "frame_numer"}, 422, "frame_number"),
        ({"name": ""}, 422, ""),
        ({"name": "x" * 121}, 422, ""),
        ({"filter": "ok AND " * 2000 + "ok"}, 422, ""),
        ({"time": "yesterday"}, 422, ""),
        ({"time": "2026-12-01T00:00:00Z..2026-11-01T00:00:00Z"}, 422, ""),
        ({"time": "2026-13-01T00:00:00Z.."}, 422, ""),
        ({"shared": "everyone"}, 422, ""),
        ({"model_id": "nobody"}, 404, "nobody"),
    ]
    for wrong, status, says in cases:
        assert says in (await api.ask(VIEWS, VIEW | wrong, status=status))["detail"], wrong
    assert await list_names(api) == []


async def test_change_keeps_other_fields(api: Api) -> None:
    saved = await save_view(api, time="24h", columns=["uid"])
    path = f"{VIEWS}/{saved['id']}"
    answer = await api.patch(path, json={"name": "frames", "time": None})
    changed = answer.json()
    assert answer.headers["ETag"] == '"2"'
    assert changed["updated_at"] > saved["updated_at"]
    same = {"name": "frames", "time": None, "revision": 2, "updated_at": changed["updated_at"]}
    assert changed == saved | same
    await api.call("PATCH", path, {"filter": "nothing_such = 1"}, status=422)
    assert await api.read(path) == changed


async def test_view_with_unknown_key_opens_with_faults(api: Api) -> None:
    saved = await save_view(api, sort="frame_number")
    await api.execute(*(delete(t) for t in (model_key, metadata_key_seen, metadata_key_delta)))
    path = f"{VIEWS}/{saved['id']}"
    opened = await api.read(path)
    assert opened["filter"] == VIEW["filter"]
    assert [fault["part"] for fault in opened["faults"]] == ["filter", "sort"]
    assert all("frame_number" in fault["detail"] for fault in opened["faults"])
    await api.call("PATCH", path, {"name": "of a key that is gone"})


async def test_names_are_unique_for_each_kind(api: Api) -> None:
    await save_view(api)
    await save_view(api, shared="project")
    assert "late frames" in (await api.ask(VIEWS, VIEW, status=409))["detail"]
    path = f"{VIEWS}/{(await save_view(api, name='other'))['id']}"
    await api.call("PATCH", path, {"name": VIEW["name"]}, status=409)
    await api.call("PATCH", path, {"name": VIEW["name"], "shared": "project"}, status=409)
    await api.call("PATCH", path, {"shared": "project"})


async def test_lists_views_in_pages_newest_first(api: Api) -> None:
    for name in ("a", "b", "c"):
        await save_view(api, name=name, shared="project" if name == "b" else "private")
    assert await list_names(api, "?model_id=model") == ["c", "b", "a"]
    assert await list_names(api, "?shared=project") == ["b"]
    first = await api.read(f"{VIEWS}?limit=2")
    assert await list_names(api, f"?limit=2&cursor={first['next']}") == ["a"]
    await api.read(f"{VIEWS}?model_id=nobody", status=404)


async def test_limits_number_of_views(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for most, shared in (("MOST_OF_A_CALLER", "private"), ("MOST_OF_A_PROJECT", "project")):
        monkeypatch.setattr(saved_views, most, 1)
        saved = await save_view(api, shared=shared)
        another = {"name": "another", "shared": shared}
        assert "1 saved view" in (await api.ask(VIEWS, VIEW | another, status=409))["detail"]
        await api.call("DELETE", f"{VIEWS}/{saved['id']}", status=204)
        await save_view(api, **another)


async def test_removing_a_model_removes_its_views(api: Api) -> None:
    await api.call("PUT", "/v1/models/empty", {})
    for model_id in ("empty", "model"):
        await save_view(api, model_id=model_id, filter="ok")
    await api.call("DELETE", "/v1/models/empty", status=204)
    assert await list_names(api) == [VIEW["name"]]
    assert await api.fetch("SELECT count(*) FROM saved_view") == [1]


async def test_audits_changes_without_names(api: Api) -> None:
    path = f"{VIEWS}/{(await save_view(api))['id']}"
    await api.call("PATCH", path, {"shared": "project"})
    await api.call("DELETE", path)
    entries = (await api.read("/v1/audit?model_id=model"))["items"]
    assert [entry["action"] for entry in entries] == ["view_deleted", "view_changed", "view_saved"]
    assert [entry["detail"]["revision"] for entry in entries] == [2, 2, 1]
    assert VIEW["name"] not in str(entries)
