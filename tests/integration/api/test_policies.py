"""Retention policies over HTTP: levels, previews, grace periods, history, overrides."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import policies
from inference_store.index.tables import inference
from inference_store.inference.events.event import Extras
from tests.integration.api.conftest import MakeApp, make_client
from tests.integration.stored_inferences import NewInference, store
from tests.settings import TOKEN

_NOW = datetime.now(UTC).replace(microsecond=0)
_PATHS = {
    "model": "/v1/models/hall/retention-policy",
    "project": "/v1/projects/building/retention-policy",
    "default": "/v1/retention-policy",
}
LOW = {"name": "low", "filter": "top_score < 0.4", "keep_input": "P1D", "keep_inference": "P3D"}
REST = {"name": "rest", "keep_input": "P30D", "keep_response": "P60D", "keep_inference": "P2Y"}


def make_inference(number: int, score: float, days: float) -> NewInference:
    """Return an inference of the model `hall` that is `days` old."""
    return NewInference(
        f"id-{number}",
        _NOW - timedelta(days=days),
        predictions=[("person", score)],
        extras=Extras(data_size=100),
        keys=("s3://b/d", "s3://b/r", None),
        model_id="hall",
    )


@pytest.fixture
async def client(make_app: MakeApp, engine: AsyncEngine) -> AsyncIterator[httpx.AsyncClient]:
    await store(
        engine,
        *(make_inference(n, 0.1, 10) for n in range(30)),
        *(make_inference(n, 0.2, 2) for n in range(30, 35)),
        *(make_inference(n, 0.9, 40) for n in range(35, 42)),
        *(make_inference(n, 0.9, 5) for n in range(42, 45)),
    )
    async with make_client(make_app()) as http_client:
        await http_client.put("/v1/models/hall", json={"project_id": "building"})
        yield http_client


async def send(
    client: httpx.AsyncClient, method: str, path: str, body: Any = None, **more: Any
) -> Any:
    answer = await client.request(method, path, json=body, **more)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


async def test_policy_reports_what_it_would_delete(client: httpx.AsyncClient) -> None:
    answer = await send(client, "PUT", _PATHS["model"], {"rules": [LOW, REST]})
    lost = answer["would_delete"]
    assert lost["inferences"]["count"] == 30
    assert lost["inferences"]["unknown_sizes"] == 30
    assert (lost["inputs"]["count"], lost["inputs"]["bytes"]) == (5 + 7, 1200)
    assert lost["responses"]["count"] == 0
    assert (lost["partial"], lost["more_than_now"], len(lost["examples"])) == (False, 42, 20)
    oldest = (_NOW - timedelta(days=10)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    assert (lost["inferences"]["oldest"], lost["inferences"]["newest"]) == (oldest, oldest)
    first = lost["examples"][0]
    assert (first["model_id"], first["scope"]) == ("hall", "input")
    assert first["decided_by"] == {
        **{"level": "model", "model_id": "hall", "project_id": None},
        **{"rule": 1, "name": "rest"},
    }


async def test_deleting_policy_waits_for_grace_and_can_be_revoked(
    client: httpx.AsyncClient,
) -> None:
    path = _PATHS["model"]
    first = await send(client, "PUT", path, {"rules": [{**REST, "keep_input": "P1Y"}]})
    assert (first["state"], first["would_delete"]["more_than_now"]) == ("in_force", 0)
    pending = await send(client, "PUT", path, {"rules": [LOW, REST]})
    assert (pending["state"], pending["revision"]) == ("pending", 2)
    effective_at = datetime.fromisoformat(pending["effective_at"])
    assert timedelta(minutes=59) < effective_at - datetime.now(UTC) <= timedelta(hours=1)
    current = await send(client, "GET", path)
    assert (current["revision"], current["pending"]["revision"]) == (1, 2)
    assert current["pending"]["rules"][0]["filter"] == LOW["filter"]
    refused = await client.delete(f"{path}/pending", headers={"If-Match": '"1"'})
    assert refused.status_code == 412
    await send(client, "DELETE", f"{path}/pending", headers={"If-Match": '"2"'})
    assert (await client.delete(f"{path}/pending")).status_code == 404
    history = (await send(client, "GET", f"{path}/history"))["items"]
    assert [(version["revision"], version["state"]) for version in history] == [
        (2, "revoked"),
        (1, "in_force"),
    ]


async def test_longer_policy_takes_effect_at_once(
    client: httpx.AsyncClient,
) -> None:
    path = _PATHS["project"]
    token = (await send(client, "POST", f"{path}/preview", {"rules": [LOW, REST]}))["token"]
    body = {"rules": [LOW, REST], "effective": "now", "token": token}
    assert (await send(client, "PUT", path, body))["state"] == "in_force"
    longer = {"rules": [{**LOW, "keep_inference": "P5D"}, REST]}
    answer = await send(client, "PUT", path, longer)
    assert (answer["state"], answer["would_delete"]["inferences"]["count"]) == ("in_force", 30)


async def test_inference_shows_its_rule_and_deletion_times(
    client: httpx.AsyncClient,
) -> None:
    await send(client, "PUT", _PATHS["project"], {"minimum_age": "P20D", "max_inferences": 99})
    keep = {"rules": [{**LOW, "keep_inference": "P1Y"}]}
    await send(client, "PUT", _PATHS["default"], {"rules": [{**REST, "keep_input": "P2Y"}]})
    await send(client, "PUT", _PATHS["model"], keep)
    path = "/v1/models/hall/inferences"
    low = await send(client, "GET", f"{path}/id-30/retention")
    assert low["decided_by"]["name"] == "low"
    assert low["input_goes_at"] == _format_time(_NOW + timedelta(days=18))  # the minimum age
    assert low["limits"] == [{"name": "max_inferences", "most": 99, "level": "project"}]
    high = await send(client, "GET", f"{path}/id-42/retention")
    assert (high["decided_by"]["level"], high["decided_by"]["name"]) == ("default", "rest")
    assert high["response_goes_at"] == _format_time(_NOW + timedelta(days=55))
    hold = {"name": "case 7", "reason": "x", "model_id": "hall", "filter": "top_score > 0.8"}
    await send(client, "POST", "/v1/holds", hold)
    assert (await send(client, "GET", f"{path}/id-42/retention"))["held_by"]["name"] == "case 7"
    assert (await send(client, "GET", f"{path}/id-30/retention"))["held_by"] is None
    lost = (await send(client, "PUT", _PATHS["default"], {"rules": [REST]}))["would_delete"]
    assert (lost["inputs"]["count"], lost["inputs"]["held"]) == (0, 7)


async def test_a_limit_is_previewed(client: httpx.AsyncClient) -> None:
    answer = await send(client, "PUT", _PATHS["model"], {"max_inferences": 10})
    lost = answer["would_delete"]
    assert (answer["state"], lost["inferences"]["count"]) == ("pending", 35)
    assert lost["examples"][0]["decided_by"] is None


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


async def test_immediate_effect_requires_the_token_of_the_preview(
    client: httpx.AsyncClient,
) -> None:
    path = _PATHS["default"]
    body = {"rules": [LOW]}
    preview = await send(client, "POST", f"{path}/preview", body)
    assert (preview["grace_seconds"], preview["would_delete"]["inferences"]["count"]) == (3600, 30)
    assert (await client.get(path)).status_code == 404  # nothing was set
    now = {"effective": "now"}
    assert (await client.put(path, json={**body, **now})).status_code == 422
    wrong = {"token": "00000000-0000-4000-8000-000000000000"}
    assert (await client.put(path, json={**body, **now, **wrong})).status_code == 412
    with_token = {**now, "token": preview["token"]}
    other = {"rules": [{**LOW, "keep_input": "PT1H"}]}
    assert (await client.put(path, json={**other, **with_token})).status_code == 412
    answer = await send(client, "PUT", path, {**body, **with_token, "reason": "agreed"})
    assert (answer["state"], answer["reason"]) == ("in_force", "agreed")
    # the token was used
    assert (await client.put(path, json={**body, **with_token})).status_code == 412


async def test_removing_a_policy_applies_the_wider_one_after_grace(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    keep = {"rules": [{"keep_input": "forever", "keep_inference": "forever"}]}
    await send(client, "PUT", _PATHS["model"], keep)
    answer = await send(client, "PUT", _PATHS["default"], {"rules": [LOW, REST]})
    assert (answer["state"], answer["would_delete"]["examples"]) == ("in_force", [])
    await send(client, "DELETE", _PATHS["model"])
    current = await send(client, "GET", _PATHS["model"])
    assert (current["state"], current["pending"]["removed"]) == ("in_force", True)
    async with engine.connect() as connection:
        [chain] = (await policies.find_effective_policies(connection)).values()
    assert [str(rule.of) for rule in chain.rules] == ["model 'hall'"]


async def test_undercutting_a_minimum_age_requires_right_and_reason(
    make_app: MakeApp, client: httpx.AsyncClient
) -> None:
    path = _PATHS["project"]
    await send(client, "PUT", path, {"minimum_age": "P30D"})
    answer = await send(client, "PUT", _PATHS["model"], {"rules": [LOW]})
    assert answer["would_delete"]["inferences"]["count"] == 0
    undercut = {"rules": [LOW], "undercuts_minimum_age": True}
    assert (await client.put(_PATHS["model"], json=undercut)).status_code == 422
    answer = await send(client, "PUT", _PATHS["model"], {**undercut, "reason": "court order"})
    assert (answer["state"], answer["would_delete"]["inferences"]["count"]) == ("pending", 30)
    for shorter in ({"minimum_age": "P29D"}, {"max_inferences": 100}):
        assert (await client.put(path, json=shorter)).status_code == 422
    assert (await client.delete(path)).status_code == 422
    await send(client, "PUT", path, {"minimum_age": "P31D"})
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        grants = [{"rights": ["read", "admin"]}]
        created = await guarded.post(
            "/v1/keys", json={"name": "x", "grants": grants}, headers=headers
        )
        assert created.is_success, created.text
        key = {"Authorization": f"Bearer {created.json()['key']}"}
        body = {"minimum_age": "P1D", "reason": "why"}
        assert (await guarded.put(path, json=body, headers=key)).status_code == 403
        assert (await guarded.put(path, json=body, headers=headers)).status_code == 200
    await send(client, "DELETE", path, params={"reason": "moved"})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"rules": [{"keep_input": "P2D", "keep_inference": "P1D"}]}, "keep_input"),
        (
            {"rules": [{"keep_input": "P1D", "keep_response": "P9D", "keep_inference": "P2D"}]},
            "keep_response",
        ),
        ({"rules": [REST, LOW]}, "rules[0]"),
        ({"rules": [{**LOW, "filter": "top_score <"}]}, "rules[0].filter"),
        ({"rules": [{**LOW, "days": 3}]}, "days"),
        ({}, "a rule, a limit or a minimum age"),
        ({"minimum_age": "forever"}, "minimum_age"),
        ({"max_bytes": 0}, "max_bytes"),
    ],
)
async def test_rejects_invalid_policies(client: httpx.AsyncClient, body: Any, words: str) -> None:
    for path in _PATHS.values():
        for method, more in (("PUT", ""), ("POST", "/preview")):
            answer = await client.request(method, path + more, json=body)
            assert answer.status_code == 422
            assert words in answer.text


async def test_warns_about_unknown_key(client: httpx.AsyncClient) -> None:
    rule = {**LOW, "filter": "reviewed = TRUE", "types": {"reviewed": "bool"}}
    answer = await send(client, "PUT", _PATHS["model"], {"rules": [rule]})
    assert "reviewed" in " ".join(answer["warnings"])
    wrong = {"rules": [{**rule, "types": {"reviewed": "boat"}}]}
    assert "boat" in (await client.put(_PATHS["model"], json=wrong)).text


async def test_warns_about_a_project_without_models(client: httpx.AsyncClient) -> None:
    """Its policy may come first, or its name may be mistyped."""
    body = {"rules": [REST]}
    asked = [("PUT", "", body), ("POST", "/preview", body), ("POST", "/run", None)]
    for method, more, sent in asked:
        nope = await send(client, method, f"/v1/projects/biulding/retention-policy{more}", sent)
        building = await send(client, method, f"{_PATHS['project']}{more}", sent)
        warning = "No model is in the project 'biulding' yet: GET /v1/projects lists those in use."
        assert (nope["warnings"], building["warnings"]) == ([warning], [])


async def test_byte_limit_waits_for_unknown_sizes(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """An unknown size counts as nothing, so a preview is exact only when all sizes are known."""
    path, limit = _PATHS["model"], {"max_bytes": 1000}
    previewed = await send(client, "POST", f"{path}/preview", limit)
    lost = previewed["would_delete"]
    assert (lost["inferences"]["count"], lost["inferences"]["unknown_sizes"]) == (0, 45)
    assert (lost["partial"], previewed["grace_seconds"]) == (True, 3600)
    at_once = {**limit, "effective": "now", "token": previewed["token"]}
    refused = await client.put(path, json=at_once)
    assert refused.status_code == 422
    [fault] = refused.json()["errors"]
    assert fault["path"] == "effective"
    assert "the sizes of 45 inferences are not known yet" in fault["message"]
    assert (await send(client, "PUT", path, limit))["state"] == "pending"
    async with engine.begin() as connection:
        await connection.execute(update(inference).values(stored_bytes=100))
    again = await send(client, "POST", f"{path}/preview", limit)
    assert again["would_delete"]["inferences"] | {"oldest": None, "newest": None} == {
        **{"count": 35, "bytes": 3500, "unknown_sizes": 0, "held": 0},
        **{"oldest": None, "newest": None},
    }
    assert not again["would_delete"]["partial"]
    at_once["token"] = again["token"]
    assert (await send(client, "PUT", path, at_once))["state"] == "in_force"
