"""Every refusal has the same form, which names the fault and the valid values."""

import base64
import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from inference_store.api.app import create_app
from inference_store.objects import Blobs
from inference_store.platform.metrics import SHOWN
from tests.integration.stored_inferences import NewInference
from tests.settings import TOKEN

from .conftest import OWNER, Api, MakeApp, make_client

_MODEL = "/v1/models/model"
_QUERY = f"{_MODEL}/inferences/query"
_JSON = {"Content-Type": "application/json"}
_INVALID, _IMPOSSIBLE = "invalid-request", "impossible-comparison"
_ITEM = "metadata_filter[0]"


def _filter(operator: str, value: str) -> str:
    return f'{{"metadata_filter": [{{"key": "k", "operator": "{operator}", "value": {value}}}]}}'


# name → the body, the kind of the refusal, and how the path of its first fault begins
REFUSED: dict[str, tuple[str | bytes, str, str]] = {
    "no JSON": (b"{", "not-json", ""),
    "too large": (b" " * 3_000_000, "too-large", ""),
    "too many fields": (json.dumps({f"a{n}": 1 for n in range(101)}), _INVALID, "body"),
    "a name without end": (b'{"%s": 1}' % (b"l" * 1_000_000), _INVALID, "l" * 256),
    "unknown field": ('{"limt": 3}', _INVALID, "limt"),
    "limit": ('{"limit": 1001}', _INVALID, "limit"),
    "text for a number": ('{"limit": "5"}', _INVALID, "limit"),
    "time": ('{"received_at": {"from": "now"}}', _INVALID, "received_at.from"),
    "a time by its column": ('{"received_at": {"since": null}}', _INVALID, "received_at.since"),
    "given twice": ('{"received_at": {"to": 1, "to": null}}', _INVALID, "received_at.to"),
    "surrogate": ('{"data_hash": "\\ud800"}', _INVALID, "data_hash"),
    "unknown key": (
        _filter("eq", "1").replace('"k"', '"kk"'),
        "unknown-metadata-key",
        f"{_ITEM}.key",
    ),
    "operator": (_filter("gtt", "1"), _INVALID, f"{_ITEM}.operator"),
    "impossible": (_filter("gt", '"abc"'), _IMPOSSIBLE, f"{_ITEM}.value"),
    "like a number": (_filter("like", "1"), _IMPOSSIBLE, f"{_ITEM}.operator"),
    "NUL": (_filter("eq", '"\\u0000"'), _INVALID, f"{_ITEM}.value"),
    "huge": (_filter("eq", "1e500"), _IMPOSSIBLE, f"{_ITEM}.value"),
    "no list": (_filter("in", "1"), _INVALID, f"{_ITEM}.value"),
    "empty list": (_filter("in", "[]"), _INVALID, f"{_ITEM}.value"),
    "three": (_filter("between", "[1,2,3]"), _INVALID, f"{_ITEM}.value"),
}


@pytest.fixture(autouse=True)
async def store_inference(api: Api) -> None:
    await api.store(NewInference(metadata=[("k", "int", "1")]))


async def test_bodies_and_values_are_refused_by_name(api: Api) -> None:
    statuses = {"not-json": 400, "too-large": 413}
    for name, (body, kind, path) in REFUSED.items():
        answer = await api.post(_QUERY, content=body, headers=_JSON)
        problem = answer.json()
        assert problem["type"] == f"/docs/errors#{kind}", (name, problem)
        assert answer.status_code == statuses.get(kind, 422), name
        assert answer.headers["content-type"] == "application/problem+json", name
        assert set(problem) == {"type", "title", "status", "detail", "errors"}, name
        if path:
            assert problem["errors"][0]["path"].startswith(path), (name, problem)
    for route, asked, message in (
        (
            _QUERY,
            {"limit": 10**23},
            "limit: it must be a whole number, at least 1 and at most 1,000.",
        ),
        (
            "/v1/erasures",
            {"filter": "a", "dry_run": True, "uids": True, "limit": 10**23},
            "limit: it must be a whole number, at least 1 and at most 10,000.",
        ),
        (
            "/v1/erasures",
            {"subject": {"key": "", "value": "ann"}},
            "subject.key: it must not be empty.",
        ),
        (_QUERY, {"limt": 3}, "limt: unknown field; the nearest is 'limit'."),
        (_QUERY, {"include": ["urls"] * 9}, "include: it must have at most 8 items."),
        ("/v1/keys", {"name": "x"}, "grants: it is required."),
        ("/v1/keys", {"name": "x", "grants": [3]}, "grants[0]: it must be an object."),
        ("/v1/holds", {"name": "x", "reason": "y"}, "filter: give exactly one of"),
        ("/v1/erasures", {"filter": "a", "uids": True}, "uids: it lists what a dry run"),
        (f"{_MODEL}/inferences/tags", {"filter": "a", "add": ["x"]}, "expected: give the number"),
        (f"{_MODEL}/inferences/i/metadata", {}, "metadata: give items to add"),
    ):
        assert (await api.ask(route, asked, status=422))["detail"].startswith(message), message
    for field, text, why in (
        ("text", "x" * 16_385, "it must have at most 16,384 characters."),
        ("label", "\ud800", "it must not contain NUL or a lone surrogate."),
    ):
        body = json.dumps({"items": [{field: text}]})
        path = f"{_MODEL}/inferences/i/ground-truth"
        refused = await api.put(path, content=body, headers=_JSON)
        assert refused.json()["detail"] == f"items[0].{field}: {why}"
    [fault] = (await api.ask(_QUERY, {"prediction": {"score": {"less": 1}}}, status=422))["errors"]
    assert fault["path"] == "prediction.score.less"
    assert fault["known"] == ["gt", "gte", "lt", "lte", "eq"]
    problem = await api.ask(_QUERY, {"prediction": {"label": 5}}, status=422)
    assert {fault["path"] for fault in problem["errors"]} == {"prediction.label"}
    problem = await api.read("/v1/projects?x=1", status=422)
    assert problem["errors"][0]["known"] == ["cursor", "limit"]


async def test_paths_and_names_that_cannot_be_stored(api: Api) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/", 404),
        ("PATCH", "/v1/models", 405),
        ("GET", "/v1/models/%ff", 422),
        ("GET", "/v1/models/%00", 422),
        ("GET", f"/v1/models/{'x' * 257}", 422),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/erasures/1", 422),
        ("GET", "/v1/dead-letters/0", 422),
        ("GET", "/v1/dead-letters/9223372036854775808", 422),
        ("GET", "/v1/dead-letters/7", 404),
    ):
        answer = await api.request(method, path)
        assert (answer.status_code, answer.json()["status"]) == (status, status), path
        assert status != 405 or answer.headers["allow"]
    ages = '"keep_input": "P1D", "keep_inference": "P1D"'
    rule = f'{{"level": "model", "id": "model", "rules": [{{"name": "%s", {ages}}}]}}'
    for suffix, body, field in (
        ("", '{"output_mapping": {"boxes": "%s"}}', "output_mapping.boxes"),
        ("/retention-policy", rule, "rules[0].name"),
    ):
        for name in ("a\\u0000", "\\ud800"):
            answer = await api.put(f"{_MODEL}{suffix}", content=body % name, headers=_JSON)
            refused = (answer.status_code, answer.json()["errors"][0]["path"])
            assert refused == (422, field), (name, answer.text)


async def test_rejects_cursors_out_of_range(api: Api) -> None:
    cases: list[tuple[str, list[Any]]] = [
        ("audit", [2**64 - 1]),
        ("audit", [-(2**63) - 1]),
        ("dead-letters", [2**63]),
        ("keys", ["0001-01-01T00:00:00+14:00", "x"]),
        ("retention/runs", ["0001-01-01T00:00:00+14:00", str(UUID(int=1))]),
        ("erasures", ["9999-12-31T23:59:59-14:00", str(UUID(int=1))]),
    ]
    for path, key in cases:
        cursor = base64.urlsafe_b64encode(json.dumps(key).encode()).rstrip(b"=").decode()
        problem = await api.read(f"/v1/{path}", status=422, cursor=cursor)
        assert problem["type"] == "/docs/errors#invalid-cursor", (path, key)


async def test_the_token_postgres_and_the_console_may_be_missing(
    make_app: MakeApp, blobs: Blobs
) -> None:
    async with make_client(make_app(auth="on", api_token=TOKEN)) as api:
        refused = await api.get("/v1/models")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        wrong = {"Authorization": f"Bearer {TOKEN[:-1]}"}
        assert (await api.get("/v1/models", headers=wrong)).status_code == 401
        assert (await api.get("/v1/models", headers=OWNER)).status_code == 200
        assert (await api.get("/openapi.json")).status_code == 200
    settings = make_app().state.settings
    away = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/nothing")
    async with make_client(create_app(settings, away, blobs)) as api:
        answer = await api.get("/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    await away.dispose()
    for console, status in (("on", 200), ("off", 404)):
        async with make_client(make_app(console=console)) as api:
            assert (await api.get("/console/")).status_code == status, console
            await api.read("/v1/me")


async def test_requests_are_counted_by_route(api: Api) -> None:
    labels = {"method": "GET", "route": "/v1/models/{model_id}", "status": "404"}

    def count() -> float:
        return SHOWN["api"].get_sample_value("inference_store_api_requests_total", labels) or 0

    before = count()
    await api.read("/v1/models/a%2Fb", status=404)
    assert count() == before + 1


async def test_faults_in_a_filter_have_their_place_and_suggestions(api: Api) -> None:
    text = {"filter": "ok AND\n  frame_no > 9000"}
    [fault] = (await api.ask(_QUERY, text, status=422))["errors"]
    assert (fault["line"], fault["column"], fault["length"]) == (2, 3, 8)
    in_json = {"filter": {"op": "=", "args": [{"property": "frame_no"}, 1]}}
    [fault] = (await api.ask(_QUERY, in_json, status=422))["errors"]
    assert set(fault) == {"path", "message", "known"}
    greater = {"metadata_filter": [{"key": "k", "operator": "greater", "value": 1}]}
    average = {"measures": [{"function": "avg", "of": "k"}]}
    mode = {"measures": [{"function": "mode", "of": "k"}]}
    no_average = "there is no function 'avg'; the nearest is mean; known are count, "
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("query", greater, "the nearest are greater_than", "greater_than"),
        ("aggregate", average, no_average, "mean"),
        ("aggregate", mode, "known are", "top"),
        ("aggregate", {"order": "-cuont"}, "the nearest is count", "count"),
        ("query", {"sort": "modle_ms"}, "no metadata key", "model_ms"),
        ("query", {"sort": "prediction.scor"}, "no metadata key", "prediction.score"),
        ("query", {"sort": "nothing like it"}, "no metadata key", "model_id"),
    ]
    for route, body, words, nearest in cases:
        problem = await api.ask(f"{_MODEL}/inferences/{route}", body, status=422)
        [fault] = problem["errors"]
        assert words in fault["message"], body
        assert fault["known"][0] == nearest, body
        assert set(fault["known"]) >= {"query": {nearest}, "aggregate": {"count"}}[route], body
        if "sort" in body:
            assert {"model_ms", "received_at", "top_label"} <= set(fault["known"])
