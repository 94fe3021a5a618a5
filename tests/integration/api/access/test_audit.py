"""The audit: every change and every read of an input, with actor and client; filters, pages."""

from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.audit import ACTIONS, Action
from inference_store.erasure import audit_chain
from inference_store.index.tables import audit
from tests.integration.stored_inferences import NewInference, at, store
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys

_ONE = f"/v1/models/{OPEN}/inferences/one"
_ITEM = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}

# (method, path, body, actions that it adds to the audit)
REQUESTS: list[tuple[str, str, Any, list[Action]]] = [
    ("GET", _ONE, None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}?include=metadata", None, []),
    ("POST", f"/v1/models/{OPEN}/inferences/query", {"include": ["urls"]}, [Action.LINKS_MADE]),
    ("POST", f"/v1/models/{OPEN}/inferences/query", {}, []),
    ("GET", f"/v1/models/{OPEN}/inferences?include=urls", None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}/data", None, [Action.DATA_READ]),
    ("GET", f"{_ONE}/metadata", None, [Action.METADATA_READ]),
    ("GET", f"{_ONE}/response", None, []),
    ("POST", f"{_ONE}/metadata", _ITEM, [Action.METADATA_CHANGED]),
    ("DELETE", _ONE, None, [Action.INFERENCE_ERASED]),
    ("GET", f"{_ONE}/data", None, []),  # erased, so nothing was read
    ("PUT", f"/v1/models/{OPEN}", {"project_id": "p"}, [Action.MODEL_MOVED]),
    ("PUT", f"/v1/models/{OPEN}", {"project_id": "p", "name": "x"}, [Action.MODEL_CHANGED]),
    ("PUT", "/v1/models/new", {}, [Action.MODEL_REGISTERED]),
    ("PUT", f"/v1/models/{OPEN}/retention-policy", _RULES, [Action.POLICY_SET]),
    ("POST", f"/v1/models/{OPEN}/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("POST", "/v1/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("DELETE", f"/v1/models/{OPEN}/retention-policy", None, [Action.POLICY_REMOVED]),
    ("DELETE", f"/v1/models/{OPEN}/retention-policy", None, []),  # there is none: no change
    ("DELETE", "/v1/models/new", None, [Action.MODEL_REMOVED]),
    ("POST", "/v1/dead-letters/redrive", {}, [Action.DEAD_LETTERS_REDRIVEN]),
    ("POST", "/v1/keys", {"name": "x", "grants": [{"role": "reader"}]}, [Action.KEY_CREATED]),
]


@pytest.mark.usefixtures("two_models")
async def test_audits_every_change_and_every_read_of_an_input(keys: Keys) -> None:
    key = await keys.make({"role": "owner"})
    name = f"key:{key.split('_')[1]}"
    expected: list[tuple[str, str]] = []
    for method, path, body, actions in REQUESTS:
        await keys.ask(key, method, path, body)
        expected += [(name, action.value) for action in actions]
        entries = await _read_entries(keys)
        assert [(entry["actor"], entry["action"]) for entry in entries[::-1]] == expected, (
            method,
            path,
        )
    assert {entry["client"] for entry in entries} == {"127.0.0.1"}
    model_entries = [entry for entry in entries if entry["model_id"] == OPEN]
    assert len(model_entries) == 12
    read = next(entry for entry in entries if entry["action"] == "data_read")
    assert read["uid"] is not None
    policy = next(entry for entry in entries if entry["action"] == "policy_set")
    effective_at = policy["detail"].pop("effective_at")
    assert effective_at is not None
    change = {"level": "model", "undercuts_minimum_age": False, "revision": 1}
    assert policy["detail"] == {**_RULES, **change}


async def _read_entries(keys: Keys, **filters: Any) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    answer = await keys.ask(TOKEN, "GET", f"/v1/audit?{query}")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@pytest.mark.usefixtures("two_models")
async def test_filters_and_pages(keys: Keys, engine: AsyncEngine) -> None:
    more = [NewInference(f"more-{n}", at(n + 1), model_id=OPEN) for n in range(3)]
    await store(engine, *more)
    await keys.ask(TOKEN, "POST", f"/v1/models/{OPEN}/inferences/query", {"include": ["urls"]})
    for model_id in (OPEN, SECRET):
        await keys.ask(TOKEN, "GET", f"/v1/models/{model_id}/inferences/one/data")
    assert len(await _read_entries(keys)) == 6
    assert len(await _read_entries(keys, action="links_made")) == 4
    assert len(await _read_entries(keys, model_id=SECRET)) == 1
    assert len(await _read_entries(keys, uid=more[0].uid)) == 1
    assert len(await _read_entries(keys, actor="token", model_id=OPEN, action="data_read")) == 1
    assert await _read_entries(keys, actor="key:nobody") == []
    assert len(await _read_entries(keys, at_from="2026-01-01T00:00:00Z")) == 6
    assert await _read_entries(keys, at_to="2026-01-01T00:00:00Z") == []
    first = (await keys.ask(TOKEN, "GET", "/v1/audit?limit=4")).json()
    rest = (await keys.ask(TOKEN, "GET", f"/v1/audit?limit=4&cursor={first['next']}")).json()
    ids = [entry["id"] for entry in first["items"] + rest["items"]]
    assert ids == sorted(ids, reverse=True)
    assert (len(ids), rest["next"]) == (6, None)
    for wrong in ("action=data_reed", "uid=1", "at_from=now", "actr=x"):
        assert (await keys.ask(TOKEN, "GET", f"/v1/audit?{wrong}")).status_code == 422


@pytest.mark.usefixtures("two_models")
async def test_omits_links_without_the_right_to_inputs(keys: Keys) -> None:
    reader = await keys.make({"rights": ["read"], "model_id": OPEN})
    inference = (await keys.ask(reader, "GET", _ONE)).json()
    assert inference["metadata"]
    assert "urls" not in inference
    for method, path, body in (
        ("GET", f"{_ONE}?include=urls", None),
        ("GET", f"/v1/models/{OPEN}/inferences?include=urls", None),
        ("POST", f"/v1/models/{OPEN}/inferences/query", {"include": ["urls"]}),
    ):
        assert (await keys.ask(reader, method, path, body)).status_code == 403
    assert await _read_entries(keys) == []


@pytest.mark.usefixtures("two_models")
async def test_serves_no_input_if_the_audit_entry_fails(keys: Keys, engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("ALTER TABLE audit ADD CHECK (action <> 'data_read')"))
    answer = await keys.ask(TOKEN, "GET", f"{_ONE}/data")
    assert answer.status_code == 500
    assert b"extended_metadata" not in answer.content
    assert (await keys.ask(TOKEN, "GET", f"{_ONE}/response")).status_code == 200


async def test_old_entries_are_pruned_in_batches(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO audit (at, actor, action)"
                " SELECT now() - n * interval '1 day', 'x', 'y' FROM generate_series(9, 0, -1) AS n"
            )
        )
        prune: dict[str, Any] = {"older_than_seconds": 4.5 * 24 * 3600, "limit": 3}
        assert await audit_chain.link_entries(connection, limit=100) == 10
        pruned = [await audit_chain.prune_entries(connection, **prune) for _ in range(3)]
        assert pruned == [3, 2, 0]
        assert await connection.scalar(select(func.count()).select_from(audit)) == 5


@pytest.mark.parametrize("action", Action)
def test_every_action_has_a_sentence(action: Action) -> None:
    assert ACTIONS[action].endswith(".")


async def test_refused_change_is_not_audited(keys: Keys) -> None:
    answer = await keys.ask(TOKEN, "POST", "/v1/keys/nobody/revoke")
    assert answer.status_code == 404
    assert await _read_entries(keys) == []
