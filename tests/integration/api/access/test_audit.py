"""The audit: every change and every read of an input, with actor and client; filters, pages."""

from typing import Any

import pytest

from inference_store.access.rights import Action
from tests.integration.api.conftest import Api
from tests.integration.stored_inferences import NewInference, at
from tests.settings import TOKEN

from .conftest import OPEN, SECRET, Keys

_MODEL = f"/v1/models/{OPEN}"
_ONE = f"{_MODEL}/inferences/one"
_ITEM = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
_POLICY = {"level": "model", "id": OPEN, **_RULES}
_URLS = {"include": ["urls"]}

# (method, path, body, actions that it adds to the audit)
REQUESTS: list[tuple[str, str, Any, list[Action]]] = [
    ("GET", _ONE, None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}?include=metadata", None, []),
    ("POST", f"{_MODEL}/inferences/query", _URLS, [Action.LINKS_MADE]),
    ("POST", f"{_MODEL}/inferences/query", {}, []),
    ("GET", f"{_MODEL}/inferences?include=urls", None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}/data", None, [Action.DATA_READ]),
    ("GET", f"{_ONE}/metadata", None, [Action.METADATA_READ]),
    ("GET", f"{_ONE}/response", None, []),
    ("POST", f"{_ONE}/metadata", _ITEM, [Action.METADATA_CHANGED]),
    ("DELETE", _ONE, None, [Action.INFERENCE_ERASED]),
    ("GET", f"{_ONE}/data", None, []),  # erased, so nothing was read
    ("PUT", _MODEL, {"project_id": "p"}, [Action.MODEL_MOVED]),
    ("PUT", _MODEL, {"project_id": "p", "name": "x"}, [Action.MODEL_CHANGED]),
    ("PUT", "/v1/models/new", {}, [Action.MODEL_REGISTERED]),
    ("PUT", f"{_MODEL}/retention-policy", _POLICY, [Action.POLICY_SET]),
    ("POST", f"{_MODEL}/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("POST", "/v1/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("DELETE", f"{_MODEL}/retention-policy", None, [Action.POLICY_REMOVED]),
    ("DELETE", f"{_MODEL}/retention-policy", None, []),  # there is none: no change
    ("DELETE", "/v1/models/new", None, [Action.MODEL_REMOVED]),
    ("POST", "/v1/dead-letters/redrive", {}, [Action.DEAD_LETTERS_REDRIVEN]),
    ("POST", "/v1/parked-events/retry", {}, [Action.PARKED_RETRIED]),
    ("POST", "/v1/keys", {"name": "x", "grants": [{"role": "reader"}]}, [Action.KEY_CREATED]),
    ("POST", "/v1/keys/nobody/revoke", None, []),  # refused
]


async def _read_entries(keys: Keys, **filters: Any) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return list((await keys.call(TOKEN, "GET", f"/v1/audit?{query}"))["items"])


@pytest.mark.usefixtures("two_models")
async def test_audits_every_change_and_every_read_of_an_input(keys: Keys) -> None:
    key = await keys.make({"role": "owner"})
    name = f"key:{key.split('_')[1]}"
    expected: list[tuple[str, str]] = []
    for method, path, body, actions in REQUESTS:
        await keys.ask(key, method, path, body)
        expected += [(name, action.value) for action in actions]
        entries = await _read_entries(keys)
        found = [(entry["actor"], entry["action"]) for entry in entries[::-1]]
        assert found == expected, (method, path)
    assert {entry["client"] for entry in entries} == {"127.0.0.1"}
    assert len([entry for entry in entries if entry["model_id"] == OPEN]) == 12
    read = next(entry for entry in entries if entry["action"] == "data_read")
    assert read["uid"] is not None
    policy = next(entry for entry in entries if entry["action"] == "policy_set")
    assert policy["detail"].pop("effective_at") is not None
    change = {"level": "model", "undercuts_minimum_age": False, "revision": 1}
    assert policy["detail"] == {**_RULES, **change}


@pytest.mark.usefixtures("two_models")
async def test_filters_and_pages(keys: Keys, guarded: Api) -> None:
    more = [NewInference(f"more-{n}", at(n + 1), model_id=OPEN) for n in range(3)]
    await guarded.store(*more)
    await keys.call(TOKEN, "POST", f"{_MODEL}/inferences/query", _URLS)
    for model_id in (OPEN, SECRET):
        await keys.ask(TOKEN, "GET", f"/v1/models/{model_id}/inferences/one/data")
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 6),
        ({"action": "links_made"}, 4),
        ({"model_id": SECRET}, 1),
        ({"uid": more[0].uid}, 1),
        ({"actor": "token", "model_id": OPEN, "action": "data_read"}, 1),
        ({"actor": "key:nobody"}, 0),
        ({"at_from": "2026-01-01T00:00:00Z"}, 6),
        ({"at_to": "2026-01-01T00:00:00Z"}, 0),
    ]
    for filters, number in cases:
        assert len(await _read_entries(keys, **filters)) == number, filters
    first = await keys.call(TOKEN, "GET", "/v1/audit?limit=4")
    rest = await keys.call(TOKEN, "GET", f"/v1/audit?limit=4&cursor={first['next']}")
    ids = [entry["id"] for entry in first["items"] + rest["items"]]
    assert ids == sorted(ids, reverse=True)
    assert (len(ids), rest["next"]) == (6, None)
    for wrong in ("action=data_reed", "uid=1", "at_from=now", "actr=x"):
        await keys.call(TOKEN, "GET", f"/v1/audit?{wrong}", status=422)


@pytest.mark.usefixtures("two_models")
async def test_omits_links_without_the_right_to_inputs(keys: Keys) -> None:
    reader = await keys.make({"rights": ["read"], "model_id": OPEN})
    inference = await keys.call(reader, "GET", _ONE)
    assert inference["metadata"]
    assert "urls" not in inference
    await keys.call(reader, "GET", f"{_ONE}?include=urls", status=403)
    await keys.call(reader, "GET", f"{_MODEL}/inferences?include=urls", status=403)
    await keys.call(reader, "POST", f"{_MODEL}/inferences/query", _URLS, status=403)
    assert await _read_entries(keys) == []


@pytest.mark.usefixtures("two_models")
async def test_serves_no_input_if_the_audit_entry_fails(keys: Keys, guarded: Api) -> None:
    await guarded.execute("ALTER TABLE audit ADD CHECK (action <> 'data_read')")
    answer = await keys.ask(TOKEN, "GET", f"{_ONE}/data")
    assert answer.status_code == 500
    assert b"extended_metadata" not in answer.content
    assert (await keys.ask(TOKEN, "GET", f"{_ONE}/response")).status_code == 200
