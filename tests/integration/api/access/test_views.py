"""Rights to see, save and change views."""

from typing import Any

import pytest

from tests.integration.api.conftest import Api

from .conftest import OPEN, SECRET, Keys

pytestmark = pytest.mark.usefixtures("two_models")
READER = {"rights": ["read"], "model_id": OPEN}
ANALYST = {"role": "analyst", "model_id": OPEN}
OTHER = {"role": "owner", "model_id": SECRET}


async def save_view(keys: Keys, key: str, **changes: Any) -> str:
    body = {"name": "mine", "model_id": OPEN, "filter": "ok"} | changes
    return f"/v1/views/{(await keys.call(key, 'POST', '/v1/views', body, status=201))['id']}"


async def list_names(keys: Keys, key: str) -> set[str]:
    return {view["name"] for view in (await keys.call(key, "GET", "/v1/views"))["items"]}


async def test_only_its_creator_sees_or_makes_a_private_view(keys: Keys) -> None:
    mine, colleague = await keys.make(READER), await keys.make({"role": "owner"})
    path = await save_view(keys, mine)
    await save_view(keys, colleague)  # of the same name
    assert (await keys.call(mine, "GET", path))["may_change"] is True
    for method, body in (("GET", None), ("PATCH", {}), ("DELETE", None)):
        await keys.call(colleague, method, path, body, status=404)
    await keys.call(mine, "PATCH", path, {}, status=200)
    await keys.call(mine, "DELETE", path, status=204)
    maker, another = await keys.make(ANALYST), await keys.make(ANALYST)
    path = await save_view(keys, maker, shared="project")
    await keys.call(another, "PATCH", path, {"name": "theirs"}, status=200)
    await keys.call(another, "PATCH", path, {"shared": "private"}, status=403)
    await keys.call(maker, "PATCH", path, {"shared": "private"}, status=200)
    await keys.call(another, "GET", path, status=404)


async def test_readers_of_the_model_see_a_project_view_and_analysts_change_it(keys: Keys) -> None:
    analyst, reader, other = [await keys.make(grant) for grant in (ANALYST, READER, OTHER)]
    path = await save_view(keys, analyst, name="secret-of-open", shared="project")
    assert await list_names(keys, reader) == {"secret-of-open"}
    assert (await keys.call(reader, "GET", path))["may_change"] is False
    assert await list_names(keys, other) == set()
    hidden = await keys.call(other, "GET", path, status=404)
    assert "secret-of-open" not in str(hidden)
    await keys.call(other, "GET", f"/v1/views?model_id={OPEN}", status=404)
    # projects may use the same name
    await save_view(keys, other, name="secret-of-open", model_id=SECRET, shared="project")
    analyst, reader = await keys.make(ANALYST), await keys.make(READER)
    body = {"name": "x", "model_id": OPEN, "shared": "project"}
    await keys.call(reader, "POST", "/v1/views", body, status=403)
    path, own = await save_view(keys, analyst, shared="project"), await save_view(keys, reader)
    await keys.call(reader, "PATCH", own, {"shared": "project"}, status=403)
    await keys.call(reader, "PATCH", path, {"name": "y"}, status=403)
    await keys.call(reader, "DELETE", path, status=403)


async def test_losing_access_to_the_model_hides_its_views(keys: Keys) -> None:
    both = await keys.make({"role": "owner", "project_id": f"{OPEN}-project"})
    path = await save_view(keys, both)
    owner = await keys.make({"role": "owner"})
    await keys.call(owner, "PUT", f"/v1/models/{OPEN}", {"project_id": "away"}, status=200)
    await keys.call(both, "GET", path, status=404)
    assert await list_names(keys, both) == set()


async def test_revoking_a_key_deletes_its_private_views(keys: Keys, guarded: Api) -> None:
    owner, key = await keys.make({"role": "owner"}), await keys.make(ANALYST)
    await save_view(keys, key, name="private")
    await save_view(keys, key, name="shared", shared="project")
    await keys.call(owner, "POST", f"/v1/keys/{key.split('_')[1]}/revoke", status=200)
    assert await guarded.fetch("SELECT name FROM saved_view") == ["shared"]
