"""Pending policies keep at once what they keep, and models move between those of projects."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from inference_store.api.app import create_app
from inference_store.erasure import policies, runs
from inference_store.erasure.ledger import Ledger
from inference_store.index.tables import inference, policy_version
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.backups import Backup, Restore, backup, restore
from tests.integration.retention.stored import Storing
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN, make_settings

from .conftest import OWNER, Api, MakeApp, make_client

__all__ = ["backup", "restore"]
_NOW = datetime.now(UTC).replace(microsecond=0)
_MODEL, _PROJECT = "/v1/models/hall/retention-policy", "/v1/projects/building/retention-policy"
_YEAR = {"rules": [{"name": "year", "keep_inference": "P1Y"}]}
_REVIEWED = {"name": "reviewed", "filter": "reviewed", "keep_inference": "P2Y"}
_TWO_YEARS = {"rules": [{**_REVIEWED, "types": {"reviewed": "bool"}}, {"keep_inference": "P9M"}]}


async def _begin(api: Api, level: str) -> None:
    here = policy_version.c
    ended = update(policy_version).where(here.level == level, here.effective_at > func.now())
    await api.execute(ended.values(effective_at=func.now()))


async def test_a_pending_policy_keeps_what_a_wider_one_would_take(
    api: Api, settings: Callable[..., ApiSettings], blobs: Blobs
) -> None:
    await api.store(
        *(_make_inference(n, 500, [("reviewed", "bool", "true")]) for n in range(10)),
        *(_make_inference(n, 500) for n in range(10, 15)),
        *(_make_inference(n, 300) for n in range(15, 18)),
    )
    await api.call("PUT", "/v1/models/hall", {"project_id": "building"})
    to = settings()
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    retention = make_settings(RetentionSettings, **{name: getattr(to, name) for name in names})

    async def run() -> int:
        await api.transact(runs.request_run, None)
        await Storing(api.engine, blobs, retention).lead(turns=1, scheduled=False)
        return int(await api.scalar(select(func.count()).select_from(inference)) or 0)

    year = await api.call("PUT", _PROJECT, _YEAR)
    assert (year["state"], year["would_delete"]["inferences"]["count"]) == ("pending", 15)
    previewed = await api.ask(f"{_MODEL}/preview", _TWO_YEARS)
    put = await api.call("PUT", _MODEL, _TWO_YEARS)
    for answer in (previewed, put):
        assert answer["would_delete"]["inferences"]["count"] == 8
        [warning] = answer["warnings"]
        assert "The policy of project 'building' is pending until" in warning
        assert year["effective_at"][:19] in warning
    assert put["state"] == "pending"
    kept = await api.read("/v1/models/hall/inferences/id-0/retention")
    assert (kept["decided_by"], kept["pending"]["decided_by"]["name"]) == (None, "reviewed")
    assert kept["pending"]["begins_at"] == put["effective_at"]
    assert datetime.fromisoformat(kept["inference_goes_at"]) > _NOW + timedelta(days=200)
    gone = await api.read("/v1/models/hall/inferences/id-12/retention")
    assert gone["inference_goes_at"] == put["effective_at"]
    assert await run() == 18
    await _begin(api, "project")
    kept = await api.read("/v1/models/hall/inferences/id-0/retention")
    assert (kept["decided_by"]["name"], kept["pending"]["decided_by"]["name"]) == (
        "year",
        "reviewed",
    )
    assert datetime.fromisoformat(kept["inference_goes_at"]) > _NOW + timedelta(days=200)
    assert await run() == 13
    await _begin(api, "model")
    assert await run() == 10


def _make_inference(number: int, days: float, metadata: Any = ()) -> NewInference:
    at = _NOW - timedelta(days=days)
    return NewInference(f"id-{number}", at, metadata, model_id="hall")


_HALL = "/v1/models/hall"
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
    source = (await api.read(f"{_HALL}/inferences/id-0/retention"))["decided_by"]
    return None if source is None else source["project_id"]


@pytest.mark.usefixtures("stored")
async def test_a_move_warns_waits_for_grace_and_can_be_undone(api: Api) -> None:
    await put(api, _LAB, _DAY)
    before = datetime.now(UTC)
    moved = await put(api, _HALL, {"project_id": "lab"})
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
    renamed = await put(api, _HALL, {"project_id": "lab", "name": "Hall"})
    assert (renamed["pending_move"], renamed.get("warning")) == (pending, None)
    assert (await api.read(_HALL))["pending_move"] == pending
    back = await put(api, _HALL, {"name": "Hall"})
    assert (back["project_id"], back["pending_move"]) == (None, None)
    assert back["warning"]["policies"] == []
    assert await read_deciding_project(api) is None
    entries = (await api.read("/v1/audit?action=model_moved"))["items"]
    assert [entry["detail"].get("project_id") for entry in entries] == [None, "lab"]


@pytest.mark.usefixtures("stored")
async def test_a_move_to_policies_that_delete_nothing_more_takes_effect_at_once(api: Api) -> None:
    await put(api, _LAB, {"rules": [{"keep_inference": "forever"}]})
    moved = await put(api, _HALL, {"project_id": "lab", "name": "Hall"})
    assert (moved["name"], moved["project_id"], moved["pending_move"]) == ("Hall", "lab", None)
    assert [policy["level"] for policy in moved["warning"]["policies"]] == ["project"]
    assert await read_deciding_project(api) == "lab"
    # its own policy decides, here as there
    await put(api, f"{_HALL}/retention-policy", {"rules": [{"keep_inference": "P9Y"}]})
    await put(api, "/v1/projects/other/retention-policy", _DAY)
    moved = await put(api, _HALL, {"project_id": "other"})
    assert moved["pending_move"] is None
    assert [policy["level"] for policy in moved["warning"]["policies"]] == ["model", "project"]
    await api.call("DELETE", f"{_HALL}/retention-policy", status=204)


@pytest.mark.usefixtures("stored")
async def test_leaving_a_minimum_age_requires_right_and_reason(api: Api, make_app: MakeApp) -> None:
    await put(api, _HALL, {"project_id": "kept"})
    await put(api, "/v1/projects/kept/retention-policy", {"minimum_age": "P30D"})
    refused = await api.call("PUT", _HALL, {"project_id": "free"}, status=422)
    assert refused["errors"][0]["path"] == "reason"
    body = {"project_id": "free", "reason": "the study is over"}
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        narrow = {"name": "x", "grants": [{"rights": ["read", "admin"]}]}
        created = await guarded.ask("/v1/keys", narrow, status=201, headers=OWNER)
        key = {"Authorization": f"Bearer {created['key']}"}
        await guarded.call("PUT", _HALL, body, status=403, headers=key)
    assert (await put(api, _HALL, body))["project_id"] == "free"


async def test_refusals(api: Api) -> None:
    await put(api, _HALL, {"project_id": "a"})
    body = {"project_id": "b", "name": "Hall"}
    await api.call("PUT", _HALL, body, status=412, headers={"If-Match": '"7"'})
    assert (await api.read(_HALL))["project_id"] == "a"
    moved = await api.put(_HALL, json=body, headers={"If-Match": '"1"'})
    assert (moved.json()["name"], moved.headers["etag"]) == ("Hall", '"3"')
    # a rule cannot name the project
    rule = {"filter": "project_id = 'a'", "keep_input": "P1D", "keep_inference": "P1D"}
    policy = f"{_HALL}/retention-policy"
    refused = await api.call("PUT", policy, {"rules": [rule]}, status=422)
    assert refused["errors"][0]["path"] == "rules[0].filter"


@pytest.mark.usefixtures("stored")
async def test_replay_moves_it_after_a_restore(api: Api, backup: Backup, restore: Restore) -> None:
    """Otherwise the policy of its old project would delete what the new one keeps."""
    older = await restore(backup())
    await put(api, _LAB, _DAY)
    moved = await put(api, _HALL, {"project_id": "lab", "reason": "a new team"})
    assert await Ledger(older, api.blobs, prefix="ledger/").replay() == 2
    async with make_client(create_app(api.app.state.settings, older, api.blobs)) as again:
        assert (await again.read(_HALL))["pending_move"] == moved["pending_move"]
    async with older.connect() as connection:
        assert await policies.find_effective_policies(connection) == {}
