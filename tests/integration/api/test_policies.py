"""Retention policies over HTTP: levels, previews, grace periods, history, overrides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_store.erasure import policies
from inference_store.inference.events.event import Extras
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN

from .conftest import OWNER, Api, MakeApp, make_client

_NOW = datetime.now(UTC).replace(microsecond=0)
_PATHS = {
    "model": "/v1/models/hall/retention-policy",
    "project": "/v1/projects/building/retention-policy",
    "default": "/v1/retention-policy",
}
LOW = {"name": "low", "filter": "top_score < 0.4", "keep_input": "P1D", "keep_inference": "P3D"}
REST = {"name": "rest", "keep_input": "P30D", "keep_response": "P60D", "keep_inference": "P2Y"}


def make_inference(number: int, score: float, days: float) -> NewInference:
    return NewInference(
        f"id-{number}",
        _NOW - timedelta(days=days),
        predictions=[("person", score)],
        extras=Extras(data_size=100),
        keys=("s3://b/d", "s3://b/r", None),
        model_id="hall",
    )


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    await api.store(
        *(make_inference(n, 0.1, 10) for n in range(30)),
        *(make_inference(n, 0.2, 2) for n in range(30, 35)),
        *(make_inference(n, 0.9, 40) for n in range(35, 42)),
        *(make_inference(n, 0.9, 5) for n in range(42, 45)),
    )
    await api.call("PUT", "/v1/models/hall", {"project_id": "building"})


async def put(api: Api, level: str, body: Any) -> Any:
    return await api.call("PUT", _PATHS[level], body, status=200)


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


async def test_policy_reports_what_it_would_delete(api: Api) -> None:
    lost = (await put(api, "model", {"rules": [LOW, REST]}))["would_delete"]
    assert lost["inferences"]["count"] == 30
    assert (lost["inferences"]["bytes"], lost["inferences"]["unknown_sizes"]) == (3000, 0)
    assert (lost["inputs"]["count"], lost["inputs"]["bytes"]) == (5 + 7, 1200)
    assert lost["responses"]["count"] == 0
    assert (lost["partial"], lost["more_than_now"], len(lost["examples"])) == (False, 42, 20)
    oldest = _format_time(_NOW - timedelta(days=10))
    assert (lost["inferences"]["oldest"], lost["inferences"]["newest"]) == (oldest, oldest)
    first = lost["examples"][0]
    assert (first["model_id"], first["scope"]) == ("hall", "input")
    assert first["decided_by"] == {
        **{"level": "model", "model_id": "hall", "project_id": None},
        **{"rule": 1, "name": "rest"},
    }


async def test_deleting_policy_waits_for_grace_and_can_be_revoked(api: Api) -> None:
    path = _PATHS["model"]
    first = await put(api, "model", {"rules": [{**REST, "keep_input": "P1Y"}]})
    assert (first["state"], first["would_delete"]["more_than_now"]) == ("in_force", 0)
    before, hour = datetime.now(UTC), timedelta(hours=1)
    pending = await put(api, "model", {"rules": [LOW, REST]})
    assert (pending["state"], pending["revision"]) == ("pending", 2)
    effective_at = datetime.fromisoformat(pending["effective_at"])
    assert before + hour <= effective_at <= datetime.now(UTC) + hour
    current = await api.read(path)
    assert (current["revision"], current["pending"]["revision"]) == (1, 2)
    assert current["pending"]["rules"][0]["filter"] == LOW["filter"]
    await api.call("DELETE", f"{path}/pending", status=412, headers={"If-Match": '"1"'})
    await api.call("DELETE", f"{path}/pending", headers={"If-Match": '"2"'})
    await api.call("DELETE", f"{path}/pending", status=404)
    history = (await api.read(f"{path}/history"))["items"]
    states = [(version["revision"], version["state"]) for version in history]
    assert states == [(2, "revoked"), (1, "in_force")]


async def test_longer_policy_takes_effect_at_once(api: Api) -> None:
    preview = await api.ask(f"{_PATHS['project']}/preview", {"rules": [LOW, REST]})
    body = {"rules": [LOW, REST], "effective": "now", "token": preview["token"]}
    assert (await put(api, "project", body))["state"] == "in_force"
    longer = {"rules": [{**LOW, "keep_inference": "P5D"}, REST]}
    answer = await put(api, "project", longer)
    assert (answer["state"], answer["would_delete"]["inferences"]["count"]) == ("in_force", 30)


async def test_inference_shows_its_rule_and_deletion_times(api: Api) -> None:
    await put(api, "project", {"minimum_age": "P20D", "max_inferences": 99})
    await put(api, "default", {"rules": [{**REST, "keep_input": "P2Y"}]})
    await put(api, "model", {"rules": [{**LOW, "keep_inference": "P1Y"}]})
    path = "/v1/models/hall/inferences"
    low = await api.read(f"{path}/id-30/retention")
    assert low["decided_by"]["name"] == "low"
    assert low["input_goes_at"] == _format_time(_NOW + timedelta(days=18))  # the minimum age
    assert low["limits"] == [{"name": "max_inferences", "most": 99, "level": "project"}]
    high = await api.read(f"{path}/id-42/retention")
    assert (high["decided_by"]["level"], high["decided_by"]["name"]) == ("default", "rest")
    assert high["response_goes_at"] == _format_time(_NOW + timedelta(days=55))
    hold = {"name": "case 7", "reason": "x", "model_id": "hall", "filter": "top_score > 0.8"}
    await api.ask("/v1/holds", hold, status=201)
    assert (await api.read(f"{path}/id-42/retention"))["held_by"]["name"] == "case 7"
    assert (await api.read(f"{path}/id-30/retention"))["held_by"] is None
    lost = (await put(api, "default", {"rules": [REST]}))["would_delete"]
    assert (lost["inputs"]["count"], lost["inputs"]["held"]) == (0, 7)


async def test_a_limit_is_previewed(api: Api) -> None:
    answer = await put(api, "model", {"max_inferences": 10})
    lost = answer["would_delete"]
    assert (answer["state"], lost["inferences"]["count"]) == ("pending", 35)
    assert lost["examples"][0]["decided_by"] is None


async def test_immediate_effect_requires_the_token_of_the_preview(api: Api) -> None:
    path, body = _PATHS["default"], {"rules": [LOW]}
    preview = await api.ask(f"{path}/preview", body)
    assert (preview["grace_seconds"], preview["would_delete"]["inferences"]["count"]) == (3600, 30)
    await api.read(path, status=404)  # nothing was set
    now: dict[str, Any] = {**body, "effective": "now"}
    await api.call("PUT", path, now, status=422)
    wrong = {"token": "00000000-0000-4000-8000-000000000000"}
    await api.call("PUT", path, now | wrong, status=412)
    with_token = {**now, "token": preview["token"]}
    other = {"rules": [{**LOW, "keep_input": "PT1H"}]}
    await api.call("PUT", path, with_token | other, status=412)
    answer = await put(api, "default", {**with_token, "reason": "agreed"})
    assert (answer["state"], answer["reason"]) == ("in_force", "agreed")
    await api.call("PUT", path, with_token, status=412)  # the token was used


async def test_removing_a_policy_applies_the_wider_one_after_grace(api: Api) -> None:
    await put(api, "model", {"rules": [{"keep_input": "forever", "keep_inference": "forever"}]})
    answer = await put(api, "default", {"rules": [LOW, REST]})
    assert (answer["state"], answer["would_delete"]["examples"]) == ("in_force", [])
    await api.call("DELETE", _PATHS["model"])
    current = await api.read(_PATHS["model"])
    assert (current["state"], current["pending"]["removed"]) == ("in_force", True)
    [chain] = (await api.transact(policies.find_effective_policies)).values()
    assert [str(rule.of) for rule in chain.rules] == ["model 'hall'"]


async def test_undercutting_a_minimum_age_requires_right_and_reason(
    api: Api, make_app: MakeApp
) -> None:
    path = _PATHS["project"]
    await put(api, "project", {"minimum_age": "P30D"})
    answer = await put(api, "model", {"rules": [LOW]})
    assert answer["would_delete"]["inferences"]["count"] == 0
    undercut = {"rules": [LOW], "undercuts_minimum_age": True}
    await api.call("PUT", _PATHS["model"], undercut, status=422)
    answer = await put(api, "model", {**undercut, "reason": "court order"})
    assert (answer["state"], answer["would_delete"]["inferences"]["count"]) == ("pending", 30)
    for shorter in ({"minimum_age": "P29D"}, {"max_inferences": 100}):
        await api.call("PUT", path, shorter, status=422)
    await api.call("DELETE", path, status=422)
    await put(api, "project", {"minimum_age": "P31D"})
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        narrow = {"name": "x", "grants": [{"rights": ["read", "admin"]}]}
        created = await guarded.ask("/v1/keys", narrow, status=201, headers=OWNER)
        key = {"Authorization": f"Bearer {created['key']}"}
        body = {"minimum_age": "P1D", "reason": "why"}
        await guarded.call("PUT", path, body, status=403, headers=key)
        await guarded.call("PUT", path, body, status=200, headers=OWNER)
    await api.call("DELETE", path, params={"reason": "moved"})


async def test_rejects_invalid_policies_and_those_of_another_path(api: Api) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rules": [{"keep_input": "P2D", "keep_inference": "P1D"}]}, "keep_input"),
        ({"rules": [{**REST, "keep_response": "P9Y"}]}, "keep_response"),
        ({"rules": [REST, LOW]}, "rules[0]"),
        ({"rules": [{**LOW, "filter": "top_score <"}]}, "rules[0].filter"),
        ({"rules": [{**LOW, "days": 3}]}, "days"),
        ({}, "a rule, a limit or a minimum age"),
        ({"minimum_age": "forever"}, "minimum_age"),
        ({"max_inferences": 0}, "max_inferences"),
        ({"max_bytes": 1000}, "max_bytes"),
    ]
    for body, words in cases:
        for path in _PATHS.values():
            for method, more in (("PUT", ""), ("POST", "/preview")):
                problem = await api.call(method, path + more, body, status=422)
                assert words in str(problem), (method, path, body)
    # A browser sends a change of the model `..` to the path of the default.
    owners = {"model": "hall", "project": "building", "default": None}
    for level, path in _PATHS.items():
        own = {"level": level, "id": owners[level], "rules": [LOW]}
        wrong: list[tuple[dict[str, Any], str]] = [
            ({name: value for name, value in own.items() if name != "level"}, "level"),
            ({name: value for name, value in own.items() if name != "id"}, "id"),
            (own | {"id": ".."}, "id"),
            *((own | {"level": other}, "level") for other in owners if other != level),
        ]
        for body, field in wrong:
            for method, more in (("PUT", ""), ("POST", "/preview")):
                answer = await api.request(method, path + more, json=body)
                assert answer.status_code == 422, (method, path, body)
                [fault] = answer.json()["errors"]
                assert fault["path"] == field, (method, path, body)
        assert (await api.get(path)).status_code == 404  # nothing was set


async def test_warns_about_unknown_keys_and_projects_without_models(api: Api) -> None:
    rule = {**LOW, "filter": "reviewed = TRUE", "types": {"reviewed": "bool"}}
    answer = await put(api, "model", {"rules": [rule]})
    assert "reviewed" in " ".join(answer["warnings"])
    wrong = {"rules": [{**rule, "types": {"reviewed": "boat"}}]}
    assert "boat" in str(await api.call("PUT", _PATHS["model"], wrong, status=422))
    # Its policy may come first, or its name may be mistyped.
    body = {"rules": [REST]}
    warning = "No model is in the project 'biulding' yet: GET /v1/projects lists those in use."
    asked = [("PUT", "", body), ("POST", "/preview", body), ("POST", "/run", None)]
    for method, more, sent in asked:
        for project, warnings in (("biulding", [warning]), ("building", [])):
            path = f"/v1/projects/{project}/retention-policy{more}"
            assert (await api.call(method, path, sent))["warnings"] == warnings, path
