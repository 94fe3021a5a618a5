"""Rights to see, save and change views."""

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import saved_view

from .conftest import OPEN, SECRET, Keys

pytestmark = pytest.mark.usefixtures("two_models")
READER = {"rights": ["read"], "model_id": OPEN}
ANALYST = {"role": "analyst", "model_id": OPEN}
OTHER = {"role": "owner", "model_id": SECRET}


async def save_view(keys: Keys, key: str, **changes: Any) -> str:
    body = {"name": "mine", "model_id": OPEN, "filter": "ok"} | changes
    answer = await keys.ask(key, "POST", "/v1/views", body)
    assert answer.status_code == 201, answer.text
    return f"/v1/views/{answer.json()['id']}"


async def list_names(keys: Keys, key: str) -> set[str]:
    answer = await keys.ask(key, "GET", "/v1/views")
    assert answer.status_code == 200, answer.text
    return {view["name"] for view in answer.json()["items"]}


async def test_only_its_creator_sees_a_private_view(keys: Keys) -> None:
    mine, colleague = await keys.make(READER), await keys.make({"role": "owner"})
    path = await save_view(keys, mine)
    await save_view(keys, colleague)  # of the same name
    assert (await keys.ask(mine, "GET", path)).json()["may_change"] is True
    for method in ("GET", "PATCH", "DELETE"):
        answer = await keys.ask(colleague, method, path, {} if method == "PATCH" else None)
        assert answer.status_code == 404, method
    for method, status in (("PATCH", 200), ("DELETE", 204)):
        answer = await keys.ask(mine, method, path, {} if method == "PATCH" else None)
        assert answer.status_code == status, answer.text


async def test_readers_of_the_model_see_a_project_view(keys: Keys) -> None:
    analyst, reader, other = [await keys.make(grant) for grant in (ANALYST, READER, OTHER)]
    path = await save_view(keys, analyst, name="secret-of-open", shared="project")
    assert await list_names(keys, reader) == {"secret-of-open"}
    opened = await keys.ask(reader, "GET", path)
    assert (opened.status_code, opened.json()["may_change"]) == (200, False)
    assert await list_names(keys, other) == set()
    hidden = await keys.ask(other, "GET", path)
    assert (hidden.status_code, "secret-of-open" in hidden.text) == (404, False)
    of_model = await keys.ask(other, "GET", f"/v1/views?model_id={OPEN}")
    assert of_model.status_code == 404


async def test_projects_may_use_the_same_view_name(keys: Keys) -> None:
    for grant, model_id in ((ANALYST, OPEN), (OTHER, SECRET)):
        key = await keys.make(grant)
        await save_view(keys, key, name="same", model_id=model_id, shared="project")


async def test_without_annotate_nothing_is_shared_or_changed(keys: Keys) -> None:
    analyst, reader = await keys.make(ANALYST), await keys.make(READER)
    body = {"name": "x", "model_id": OPEN, "shared": "project"}
    assert (await keys.ask(reader, "POST", "/v1/views", body)).status_code == 403
    path, own = await save_view(keys, analyst, shared="project"), await save_view(keys, reader)
    shared = {"shared": "project"}
    assert (await keys.ask(reader, "PATCH", own, shared)).status_code == 403
    assert (await keys.ask(reader, "PATCH", path, {"name": "y"})).status_code == 403
    assert (await keys.ask(reader, "DELETE", path)).status_code == 403


async def test_only_its_creator_makes_a_view_private(keys: Keys) -> None:
    maker, another = await keys.make(ANALYST), await keys.make(ANALYST)
    path = await save_view(keys, maker, shared="project")
    assert (await keys.ask(another, "PATCH", path, {"name": "theirs"})).status_code == 200
    assert (await keys.ask(another, "PATCH", path, {"shared": "private"})).status_code == 403
    assert (await keys.ask(maker, "PATCH", path, {"shared": "private"})).status_code == 200
    assert (await keys.ask(another, "GET", path)).status_code == 404


async def test_losing_access_to_the_model_hides_its_views(keys: Keys) -> None:
    both = await keys.make({"role": "owner", "project_id": f"{OPEN}-project"})
    path = await save_view(keys, both)
    moved = await keys.ask(
        await keys.make({"role": "owner"}), "PUT", f"/v1/models/{OPEN}", {"project_id": "away"}
    )
    assert moved.status_code == 200, moved.text
    assert (await keys.ask(both, "GET", path)).status_code == 404
    assert await list_names(keys, both) == set()


async def test_revoking_a_key_deletes_its_private_views(keys: Keys, engine: AsyncEngine) -> None:
    owner, key = await keys.make({"role": "owner"}), await keys.make(ANALYST)
    await save_view(keys, key, name="private")
    await save_view(keys, key, name="shared", shared="project")
    id = key.split("_")[1]
    assert (await keys.ask(owner, "POST", f"/v1/keys/{id}/revoke")).status_code == 200
    async with engine.connect() as connection:
        stored = (await connection.execute(select(saved_view.c.name))).scalars()
    assert list(stored) == ["shared"]
