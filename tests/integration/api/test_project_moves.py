"""Moving a model to another project over HTTP: previews, grace periods, rights."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.app import create_app
from inference_store.erasure import policies
from inference_store.erasure.ledger import Ledger
from inference_store.objects import Blobs
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.backups import Backup, Restore, backup, restore
from tests.integration.stored_inferences import NewInference, store
from tests.settings import TOKEN

__all__ = ["backup", "restore"]
_MODEL = "/v1/models/hall"
_DAY = {"rules": [{"name": "day", "keep_input": "P1D", "keep_inference": "P1D"}]}


async def store_inferences(engine: AsyncEngine) -> None:
    now = datetime.now(UTC)
    inferences = [
        NewInference(f"id-{n}", now - timedelta(days=n, hours=1), model_id="hall") for n in range(5)
    ]
    await store(engine, *inferences)


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await client.request(method, path, json=body)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def read_deciding_project(client: httpx.AsyncClient) -> str | None:
    source = (await send(client, "GET", f"{_MODEL}/inferences/id-0/retention"))["decided_by"]
    return None if source is None else source["project_id"]


async def test_deleting_move_waits_for_grace_and_can_be_undone(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store_inferences(engine)
    await send(client, "PUT", "/v1/projects/lab/retention-policy", _DAY)
    moved = await send(client, "PUT", _MODEL, {"project_id": "lab"})
    lost, pending = moved["would_delete"], moved["pending_move"]
    assert (lost["inferences"]["count"], lost["more_than_now"], len(lost["examples"])) == (4, 4, 4)
    assert lost["examples"][0]["decided_by"]["project_id"] == "lab"
    assert (moved["project_id"], pending["from_project_id"]) == ("lab", None)
    begins = datetime.fromisoformat(pending["effective_at"]) - datetime.now(UTC)
    assert timedelta(minutes=50) < begins <= timedelta(hours=1)
    assert await read_deciding_project(client) is None
    # other changes of the model do not affect the move
    renamed = await send(client, "PUT", _MODEL, {"project_id": "lab", "name": "Hall"})
    assert (renamed["pending_move"], renamed.get("would_delete")) == (pending, None)
    assert (await send(client, "GET", _MODEL))["pending_move"] == pending
    back = await send(client, "PUT", _MODEL, {"name": "Hall"})
    assert (back["project_id"], back["pending_move"]) == (None, None)
    assert await read_deciding_project(client) is None
    entries = (await send(client, "GET", "/v1/audit?action=model_moved"))["items"]
    assert [entry["detail"].get("project_id") for entry in entries] == [None, "lab"]


async def test_harmless_move_takes_effect_at_once(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store_inferences(engine)
    year = {"rules": [{"keep_input": "P1Y", "keep_inference": "P1Y"}]}
    await send(client, "PUT", "/v1/projects/lab/retention-policy", year)
    moved = await send(client, "PUT", _MODEL, {"project_id": "lab", "name": "Hall"})
    assert (moved["pending_move"], moved["would_delete"]["more_than_now"]) == (None, 0)
    assert (moved["name"], moved["project_id"]) == ("Hall", "lab")
    assert await read_deciding_project(client) == "lab"
    await send(client, "PUT", "/v1/projects/other/retention-policy", _DAY)
    assert (await send(client, "PUT", _MODEL, {"project_id": "other"}))["pending_move"] is not None


async def test_policy_preview_includes_pending_models(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store_inferences(engine)
    await send(client, "PUT", "/v1/projects/lab/retention-policy", _DAY)
    await send(client, "PUT", _MODEL, {"project_id": "lab"})
    for keep, state, count in (("P2D", "in_force", 3), ("PT1M", "pending", 5)):
        rules = {"rules": [{"keep_input": keep, "keep_inference": keep}]}
        answer = await send(client, "PUT", "/v1/projects/lab/retention-policy", rules)
        assert (answer["state"], answer["would_delete"]["inferences"]["count"]) == (state, count)


async def test_move_takes_effect_at_once_with_a_preview_token(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store_inferences(engine)
    path = "/v1/projects/lab/retention-policy"
    await send(client, "PUT", path, _DAY)
    move = {"project_id": "lab"}
    preview = await send(client, "POST", f"{_MODEL}/preview", move)
    assert (preview["grace_seconds"], preview["would_delete"]["more_than_now"]) == (3600, 4)
    assert (await send(client, "GET", _MODEL))["project_id"] is None
    now = {**move, "effective": "now"}
    assert (await client.put(_MODEL, json=now)).status_code == 422
    with_token = {**now, "token": preview["token"]}
    other = {**with_token, "project_id": "elsewhere"}
    assert (await client.put(_MODEL, json=other)).status_code == 412
    await send(client, "PUT", path, {**_DAY, "max_inferences": 2})
    assert (await client.put(_MODEL, json=with_token)).status_code == 412  # another policy since
    await send(client, "PUT", _MODEL, move)
    assert await read_deciding_project(client) is None
    token = (await send(client, "POST", f"{_MODEL}/preview", move))["token"]
    moved = await send(client, "PUT", _MODEL, {**now, "token": token})
    assert moved["pending_move"] is None
    assert await read_deciding_project(client) == "lab"
    assert (await client.post("/v1/models/none/preview", json=move)).status_code == 404


async def test_leaving_a_minimum_age_requires_right_and_reason(
    make_app: MakeApp, client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store_inferences(engine)
    await send(client, "PUT", _MODEL, {"project_id": "kept"})
    await send(client, "PUT", "/v1/projects/kept/retention-policy", {"minimum_age": "P30D"})
    refused = await client.put(_MODEL, json={"project_id": "free"})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "reason")
    body = {"project_id": "free", "reason": "the study is over"}
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        grants = [{"rights": ["read", "admin"]}]
        created = await guarded.post(
            "/v1/keys", json={"name": "x", "grants": grants}, headers=headers
        )
        key = {"Authorization": f"Bearer {created.json()['key']}"}
        assert (await guarded.put(_MODEL, json=body, headers=key)).status_code == 403
    assert (await send(client, "PUT", _MODEL, body))["project_id"] == "free"


async def test_a_stale_revision_moves_nothing(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", _MODEL, {"project_id": "a"})
    stale, right = {"If-Match": '"7"'}, {"If-Match": '"1"'}
    body = {"project_id": "b", "name": "Hall"}
    assert (await client.put(_MODEL, json=body, headers=stale)).status_code == 412
    assert (await send(client, "GET", _MODEL))["project_id"] == "a"
    moved = await client.put(_MODEL, json=body, headers=right)
    assert (moved.json()["name"], moved.headers["etag"]) == ("Hall", '"3"')


async def test_a_rule_cannot_name_the_project(client: httpx.AsyncClient) -> None:
    await send(client, "PUT", _MODEL, {"project_id": "a"})
    rule = {"filter": "project_id = 'a'", "keep_input": "P1D", "keep_inference": "P1D"}
    refused = await client.put(f"{_MODEL}/retention-policy", json={"rules": [rule]})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "rules[0].filter")


async def test_replay_repeats_the_move_after_a_restore(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    backup: Backup,
    restore: Restore,
    blobs: Blobs,
    make_app: MakeApp,
) -> None:
    """Otherwise the policy of its old project would delete what the new one keeps."""
    await store_inferences(engine)
    older = await restore(backup())
    await send(client, "PUT", "/v1/projects/lab/retention-policy", _DAY)
    moved = await send(client, "PUT", _MODEL, {"project_id": "lab", "reason": "a new team"})
    assert await Ledger(older, blobs, prefix="ledger/").replay() == 2
    settings = make_app().state.settings
    async with make_client(create_app(settings, older, blobs)) as again:
        assert (await send(again, "GET", _MODEL))["pending_move"] == moved["pending_move"]
    async with older.connect() as connection:
        assert await policies.find_effective_policies(connection) == {}
