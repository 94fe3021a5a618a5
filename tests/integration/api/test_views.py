"""Views: queries about a model, saved under a name, opened, changed and deleted."""

from typing import Any

import httpx
import pytest
from sqlalchemy import delete, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import saved_views
from inference_store.index.tables import metadata_key_delta, metadata_key_seen, model_key
from tests.integration.stored_inferences import NewInference, at, store

VIEW = {"name": "late frames", "model_id": "model", "filter": "frame_number > 9000"}


@pytest.fixture(autouse=True)
async def store_inference(engine: AsyncEngine) -> int:
    return await store(engine, NewInference("a", at(0), [("frame_number", "int", "9001")]))


async def save_view(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/v1/views", json=VIEW | changes)
    assert answer.status_code == 201, answer.text
    read: dict[str, Any] = answer.json()
    return read


def check_refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


async def list_names(client: httpx.AsyncClient, query: str = "") -> list[str]:
    return [view["name"] for view in (await client.get(f"/v1/views{query}")).json()["items"]]


async def test_reads_view_as_saved(client: httpx.AsyncClient) -> None:
    whole = {
        "time": "2026-11-01T00:00:00Z..",
        "sort": "-frame_number",
        "view": "table",
        "columns": ["received_at", "metadata.frame_number"],
        "shared": "project",
    }
    answer = await client.post("/v1/views", json=VIEW | whole)
    assert answer.status_code == 201, answer.text
    read = await client.get(answer.headers["Location"])
    assert (read.headers["ETag"], read.json()) == ('"1"', answer.json())
    view = read.json()
    assert view | VIEW | whole == view
    assert (view["created_by"], view["faults"], view["may_change"]) == ("anyone", [], True)


async def test_the_defaults_are_those_of_a_query(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/views", json={"name": "all", "model_id": "model"})
    view = answer.json()
    assert (view["filter"], view["time"], view["sort"]) == (None, None, "-received_at")
    assert (view["view"], view["columns"], view["shared"]) == ("grid", [], "private")


@pytest.mark.parametrize(
    ("wrong", "status", "says"),
    [
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
    ],
)
async def test_rejects_invalid_views(
    client: httpx.AsyncClient, wrong: dict[str, Any], status: int, says: str
) -> None:
    assert says in check_refused(await client.post("/v1/views", json=VIEW | wrong), status)
    assert await list_names(client) == []


async def test_change_keeps_other_fields(client: httpx.AsyncClient) -> None:
    saved = await save_view(client, time="24h", columns=["uid"])
    path = f"/v1/views/{saved['id']}"
    answer = await client.patch(path, json={"name": "frames", "time": None})
    changed = answer.json()
    assert answer.headers["ETag"] == '"2"'
    assert changed["updated_at"] > saved["updated_at"]
    same = {"name": "frames", "time": None, "revision": 2, "updated_at": changed["updated_at"]}
    assert changed == saved | same
    check_refused(await client.patch(path, json={"filter": "nothing_such = 1"}), 422)
    assert (await client.get(path)).json() == changed


async def test_view_with_unknown_key_opens_with_faults(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    saved = await save_view(client, sort="frame_number")
    async with engine.begin() as connection:
        for table in (model_key, metadata_key_seen, metadata_key_delta):
            await connection.execute(delete(table))
    path = f"/v1/views/{saved['id']}"
    opened = (await client.get(path)).json()
    assert opened["filter"] == VIEW["filter"]
    assert [fault["part"] for fault in opened["faults"]] == ["filter", "sort"]
    assert all("frame_number" in fault["detail"] for fault in opened["faults"])
    renamed = await client.patch(path, json={"name": "of a key that is gone"})
    assert renamed.status_code == 200, renamed.text


async def test_names_are_unique_for_each_kind(client: httpx.AsyncClient) -> None:
    await save_view(client)
    await save_view(client, shared="project")
    assert "late frames" in check_refused(await client.post("/v1/views", json=VIEW), 409)
    other = await save_view(client, name="other")
    path = f"/v1/views/{other['id']}"
    check_refused(await client.patch(path, json={"name": VIEW["name"]}), 409)
    check_refused(await client.patch(path, json={"name": VIEW["name"], "shared": "project"}), 409)
    assert (await client.patch(path, json={"shared": "project"})).status_code == 200


async def test_lists_views_in_pages_newest_first(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await save_view(client, name=name, shared="project" if name == "b" else "private")
    assert await list_names(client, "?model_id=model") == ["c", "b", "a"]
    assert await list_names(client, "?shared=project") == ["b"]
    first = (await client.get("/v1/views?limit=2")).json()
    assert await list_names(client, f"?limit=2&cursor={first['next']}") == ["a"]
    assert (await client.get("/v1/views?model_id=nobody")).status_code == 404


async def test_limits_number_of_views(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, shared in (("MOST_OF_A_CALLER", "private"), ("MOST_OF_A_PROJECT", "project")):
        monkeypatch.setattr(saved_views, most, 1)
        saved = await save_view(client, shared=shared)
        another = {"name": "another", "shared": shared}
        assert "1 saved view" in check_refused(
            await client.post("/v1/views", json=VIEW | another), 409
        )
        assert (await client.delete(f"/v1/views/{saved['id']}")).status_code == 204
        await save_view(client, **another)


async def test_removing_a_model_removes_its_views(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await client.put("/v1/models/empty", json={})
    for model_id in ("empty", "model"):
        await save_view(client, model_id=model_id, filter="ok")
    assert (await client.delete("/v1/models/empty")).status_code == 204
    assert await list_names(client) == [VIEW["name"]]
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM saved_view")) == 1


async def test_audits_changes_without_names(client: httpx.AsyncClient) -> None:
    saved = await save_view(client)
    path = f"/v1/views/{saved['id']}"
    await client.patch(path, json={"shared": "project"})
    await client.delete(path)
    entries = (await client.get("/v1/audit?model_id=model")).json()["items"]
    assert [entry["action"] for entry in entries] == ["view_deleted", "view_changed", "view_saved"]
    assert [entry["detail"]["revision"] for entry in entries] == [2, 2, 1]
    assert VIEW["name"] not in str(entries)
