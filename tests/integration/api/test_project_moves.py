"""Moving a model to another project over HTTP: warnings, grace periods, rights."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_store.api.app import create_app
from inference_store.erasure import policies
from inference_store.erasure.ledger import Ledger
from tests.integration.backups import Backup, Restore, backup, restore
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN

from .conftest import OWNER, Api, MakeApp, make_client

__all__ = ["backup", "restore"]
_MODEL = "/v1/models/hall"
_LAB = "/v1/projects/lab/retention-policy"
_DAY = {"rules": [{"name": "day", "keep_input": "P1D", "keep_inference": "P1D"}]}


@pytest.fixture
async def stored(api: Api) -> None:
    """Store five inferences, one a day."""
    now = datetime.now(UTC)
    days = [now - timedelta(days=n, hours=1) for n in range(5)]
    await api.store(*(NewInference(f"id-{n}", day, model_id="hall") for n, day in enumerate(days)))


async def put(api: Api, path: str, body: Any) -> Any:
    return await api.call("PUT", path, body)


async def read_deciding_project(api: Api) -> str | None:
    source = (await api.read(f"{_MODEL}/inferences/id-0/retention"))["decided_by"]
    return None if source is None else source["project_id"]


@pytest.mark.usefixtures("stored")
async def test_a_move_warns_waits_for_grace_and_can_be_undone(api: Api) -> None:
    await put(api, _LAB, _DAY)
    before = datetime.now(UTC)
    moved = await put(api, _MODEL, {"project_id": "lab"})
    warning, pending = moved["warning"], moved["pending_move"]
    [policy] = warning["policies"]
    assert (policy["level"], policy["project_id"]) == ("project", "lab")
    assert policy["rules"][0].items() >= _DAY["rules"][0].items()
    assert (moved["project_id"], pending["from_project_id"]) == ("lab", None)
    assert warning["effective_at"] == pending["effective_at"]
    begins = datetime.fromisoformat(pending["effective_at"])
    hour = timedelta(hours=1)
    assert before + hour <= begins <= datetime.now(UTC) + hour
    assert await read_deciding_project(api) is None
    # other changes of the model do not affect the move
    renamed = await put(api, _MODEL, {"project_id": "lab", "name": "Hall"})
    assert (renamed["pending_move"], renamed.get("warning")) == (pending, None)
    assert (await api.read(_MODEL))["pending_move"] == pending
    back = await put(api, _MODEL, {"name": "Hall"})
    assert (back["project_id"], back["pending_move"]) == (None, None)
    assert back["warning"]["policies"] == []
    assert await read_deciding_project(api) is None
    entries = (await api.read("/v1/audit?action=model_moved"))["items"]
    assert [entry["detail"].get("project_id") for entry in entries] == [None, "lab"]


@pytest.mark.usefixtures("stored")
async def test_a_move_to_policies_that_delete_nothing_more_takes_effect_at_once(api: Api) -> None:
    await put(api, _LAB, {"rules": [{"keep_inference": "forever"}]})
    moved = await put(api, _MODEL, {"project_id": "lab", "name": "Hall"})
    assert (moved["name"], moved["project_id"], moved["pending_move"]) == ("Hall", "lab", None)
    assert [policy["level"] for policy in moved["warning"]["policies"]] == ["project"]
    assert await read_deciding_project(api) == "lab"
    # its own policy decides, here as there
    await put(api, f"{_MODEL}/retention-policy", {"rules": [{"keep_inference": "P9Y"}]})
    await put(api, "/v1/projects/other/retention-policy", _DAY)
    moved = await put(api, _MODEL, {"project_id": "other"})
    assert moved["pending_move"] is None
    assert [policy["level"] for policy in moved["warning"]["policies"]] == ["model", "project"]
    await api.call("DELETE", f"{_MODEL}/retention-policy", status=204)


@pytest.mark.usefixtures("stored")
async def test_leaving_a_minimum_age_requires_right_and_reason(api: Api, make_app: MakeApp) -> None:
    await put(api, _MODEL, {"project_id": "kept"})
    await put(api, "/v1/projects/kept/retention-policy", {"minimum_age": "P30D"})
    refused = await api.call("PUT", _MODEL, {"project_id": "free"}, status=422)
    assert refused["errors"][0]["path"] == "reason"
    body = {"project_id": "free", "reason": "the study is over"}
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        narrow = {"name": "x", "grants": [{"rights": ["read", "admin"]}]}
        created = await guarded.ask("/v1/keys", narrow, status=201, headers=OWNER)
        key = {"Authorization": f"Bearer {created['key']}"}
        await guarded.call("PUT", _MODEL, body, status=403, headers=key)
    assert (await put(api, _MODEL, body))["project_id"] == "free"


async def test_refusals(api: Api) -> None:
    await put(api, _MODEL, {"project_id": "a"})
    body = {"project_id": "b", "name": "Hall"}
    await api.call("PUT", _MODEL, body, status=412, headers={"If-Match": '"7"'})
    assert (await api.read(_MODEL))["project_id"] == "a"
    moved = await api.put(_MODEL, json=body, headers={"If-Match": '"1"'})
    assert (moved.json()["name"], moved.headers["etag"]) == ("Hall", '"3"')
    # a rule cannot name the project
    rule = {"filter": "project_id = 'a'", "keep_input": "P1D", "keep_inference": "P1D"}
    policy = f"{_MODEL}/retention-policy"
    refused = await api.call("PUT", policy, {"rules": [rule]}, status=422)
    assert refused["errors"][0]["path"] == "rules[0].filter"


@pytest.mark.usefixtures("stored")
async def test_replay_moves_it_after_a_restore(api: Api, backup: Backup, restore: Restore) -> None:
    """Otherwise the policy of its old project would delete what the new one keeps."""
    older = await restore(backup())
    await put(api, _LAB, _DAY)
    moved = await put(api, _MODEL, {"project_id": "lab", "reason": "a new team"})
    assert await Ledger(older, api.blobs, prefix="ledger/").replay() == 2
    async with make_client(create_app(api.app.state.settings, older, api.blobs)) as again:
        assert (await again.read(_MODEL))["pending_move"] == moved["pending_move"]
    async with older.connect() as connection:
        assert await policies.find_effective_policies(connection) == {}
