"""Every refusal has the same form, which names the fault and the valid values."""

import base64
import json
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from inference_store.api.app import create_app
from inference_store.objects import Blobs
from inference_store.platform.metrics import SHOWN
from tests.integration.stored_inferences import NewInference, store
from tests.settings import TOKEN

from .conftest import MakeApp, make_client

_QUERY = "/v1/models/model/inferences/query"
_JSON = {"Content-Type": "application/json"}
_FILTER = '{"metadata_filter": [{"key": "k", "operator": "%s", "value": %s}]}'

REFUSED: dict[str, tuple[str | bytes, int, str, str]] = {
    "no JSON": (b"{", 400, "not-json", ""),
    "no UTF-8": (b'{"a": "\xff"}', 400, "not-json", ""),
    "NaN": (b'{"limit": NaN}', 400, "not-json", ""),
    "deep": (b"[" * 20_000, 400, "not-json", ""),
    "too large": (b" " * 3_000_000, 413, "too-large", ""),
    "too many items": (b"[" + b"1," * 20_000 + b"1]", 413, "too-large", ""),
    "too many fields": (
        json.dumps({f"a{number}": 1 for number in range(101)}).encode(),
        422,
        "invalid-request",
        "body",
    ),
    "a name without end": (b'{"%s": 1}' % (b"l" * 1_000_000), 422, "invalid-request", "l" * 256),
    "unknown field": (b'{"limt": 3}', 422, "invalid-request", "limt"),
    "limit": (b'{"limit": 1001}', 422, "invalid-request", "limit"),
    "text for a number": (b'{"limit": "5"}', 422, "invalid-request", "limit"),
    "time": (b'{"received_at": {"from": "now"}}', 422, "invalid-request", "received_at.from"),
    "no time": (
        b'{"received_at": {"from": "2026-11-02T00:00:00Z", "to": "2026-11-01T00:00:00Z"}}',
        422,
        "invalid-request",
        "received_at.to",
    ),
    "no score": (
        b'{"prediction": {"score": {"gt": 0.9, "lt": 0.2}}}',
        422,
        "invalid-request",
        "prediction.score",
    ),
    "surrogate": (b'{"data_hash": "\\ud800"}', 422, "invalid-request", "data_hash.function"),
    "unknown key": (
        b'{"metadata_filter": [{"key": "kk", "operator": "eq", "value": 1}]}',
        422,
        "unknown-metadata-key",
        "metadata_filter[0].key",
    ),
    "operator": (_FILTER % ("gtt", "1"), 422, "invalid-request", "metadata_filter[0].operator"),
    "impossible": (
        _FILTER % ("gt", '"abc"'),
        422,
        "impossible-comparison",
        "metadata_filter[0].value",
    ),
    "like a number": (
        _FILTER % ("like", "1"),
        422,
        "impossible-comparison",
        "metadata_filter[0].operator",
    ),
    "NUL": (_FILTER % ("eq", '"\\u0000"'), 422, "invalid-request", "metadata_filter[0].value"),
    "huge": (_FILTER % ("eq", "1e500"), 422, "impossible-comparison", "metadata_filter[0].value"),
    "no list": (_FILTER % ("in", "1"), 422, "invalid-request", "metadata_filter[0].value"),
    "empty list": (_FILTER % ("in", "[]"), 422, "invalid-request", "metadata_filter[0].value"),
    "three": (_FILTER % ("between", "[1,2,3]"), 422, "invalid-request", "metadata_filter[0].value"),
}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
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
    ],
    ids=str,
)
async def test_a_bad_value_is_named_with_what_is_valid(
    client: httpx.AsyncClient, path: str, body: Any, message: str
) -> None:
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["detail"]) == (422, message)


@pytest.mark.parametrize("name", REFUSED)
async def test_bodies(client: httpx.AsyncClient, engine: AsyncEngine, name: str) -> None:
    await store(engine, NewInference(metadata=[("k", "int", "1")]))
    body, status, kind, path = REFUSED[name]
    answer = await client.post(_QUERY, content=body, headers=_JSON)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"/docs/errors#{kind}"), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(problem) == {"type", "title", "status", "detail", "errors"}
    if path:
        assert problem["errors"][0]["path"].startswith(path.split(".function")[0]), problem


async def test_names_known_fields(client: httpx.AsyncClient) -> None:
    body = {"prediction": {"score": {"less": 1}}}
    fault = (await client.post(_QUERY, json=body)).json()["errors"][0]
    assert fault["path"] == "prediction.score.less"
    answer = (await client.post(_QUERY, json={"limt": 3})).json()
    assert answer["detail"] == "limt: unknown field; the nearest is 'limit'."
    assert fault["known"] == ["gt", "gte", "lt", "lte", "eq"]
    assert (await client.get("/v1/projects?x=1")).json()["errors"][0]["known"] == [
        "cursor",
        "limit",
    ]


async def test_rejects_link_with_empty_time_span(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference())
    link = {"received_from": "2026-11-02T00:00:00Z", "received_to": "2026-11-02T00:00:00Z"}
    answer = await client.get(_QUERY.removesuffix("/query"), params=link)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"] == "query.received_to"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
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
    ],
)
async def test_paths(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("audit", [2**64 - 1]),
        ("audit", [-(2**63) - 1]),
        ("dead-letters", [2**63]),
        ("keys", ["0001-01-01T00:00:00+14:00", "x"]),
        ("retention/runs", ["0001-01-01T00:00:00+14:00", str(UUID(int=1))]),
        ("erasures", ["9999-12-31T23:59:59-14:00", str(UUID(int=1))]),
    ],
)
async def test_rejects_cursors_out_of_range(
    client: httpx.AsyncClient, path: str, key: list[Any]
) -> None:
    raw = json.dumps(key).encode()
    cursor = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    answer = await client.get(f"/v1/{path}", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["type"]) == (422, "/docs/errors#invalid-cursor")


@pytest.mark.parametrize("name", ["a\\u0000", "\\ud800"])
@pytest.mark.parametrize(
    ("suffix", "body", "field"),
    [
        ("", '{"output_mapping": {"boxes": "%s"}}', "output_mapping.boxes"),
        (
            "/retention-policy",
            '{"rules": [{"name": "%s", "keep_input": "P1D", "keep_inference": "P1D"}]}',
            "rules[0].name",
        ),
    ],
)
async def test_names_that_cannot_be_stored(
    client: httpx.AsyncClient, engine: AsyncEngine, suffix: str, body: str, field: str, name: str
) -> None:
    await store(engine, NewInference())
    answer = await client.put(f"/v1/models/model{suffix}", content=body % name, headers=_JSON)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, field), answer.text


async def test_the_token(make_app: MakeApp) -> None:
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        refused = await client.get("/v1/models")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        wrong = {"Authorization": f"Bearer {TOKEN[:-1]}"}
        assert (await client.get("/v1/models", headers=wrong)).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200
        assert (await client.get("/openapi.json")).status_code == 200


async def test_postgres_is_unavailable(make_app: MakeApp, blobs: Blobs) -> None:
    settings = make_app().state.settings
    away = create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/nothing")
    async with make_client(create_app(settings, away, blobs)) as client:
        answer = await client.get("/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    await away.dispose()


async def test_requests_are_counted_by_route(client: httpx.AsyncClient) -> None:
    await client.get("/v1/models/a%2Fb")
    labels = {"method": "GET", "route": "/v1/models/{model_id}", "status": "404"}
    assert (SHOWN["api"].get_sample_value("inference_store_api_requests_total", labels) or 0) >= 1


async def test_fault_in_a_filter_has_line_and_column(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference(metadata=[("k", "int", "1")]))
    answer = await client.post(_QUERY, json={"filter": "ok AND\n  frame_no > 9000"})
    [fault] = answer.json()["errors"]
    assert (fault["line"], fault["column"], fault["length"]) == (2, 3, 8)
    in_json = {"op": "=", "args": [{"property": "frame_no"}, 1]}
    [fault] = (await client.post(_QUERY, json={"filter": in_json})).json()["errors"]
    assert set(fault) == {"path", "message", "known"}


@pytest.mark.parametrize(
    ("route", "body", "words", "nearest"),
    [
        (
            "query",
            {"metadata_filter": [{"key": "k", "operator": "greater", "value": 1}]},
            "the nearest are greater_than",
            "greater_than",
        ),
        (
            "aggregate",
            {"measures": [{"function": "avg", "of": "k"}]},
            "there is no function 'avg'; the nearest are mean; known are count, ",
            "mean",
        ),
        ("aggregate", {"measures": [{"function": "mode", "of": "k"}]}, "known are", "top"),
        ("aggregate", {"order": "-cuont"}, "the nearest are count", "count"),
        ("query", {"sort": "modle_ms"}, "unknown name", "model_ms"),
        ("query", {"sort": "nothing like it"}, "unknown name", "model_id"),
    ],
)
async def test_unknown_name_suggests_known_ones(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    route: str,
    body: dict[str, Any],
    words: str,
    nearest: str,
) -> None:
    await store(engine, NewInference(metadata=[("k", "int", "1")]))
    answer = (await client.post(f"/v1/models/model/inferences/{route}", json=body)).json()
    [fault] = answer["errors"]
    assert words in fault["message"]
    assert fault["known"][0] == nearest
    assert set(fault["known"]) >= {"query": {nearest}, "aggregate": {"count"}}[route]
    if "sort" in body:
        assert "The properties are model_id, " in answer["detail"]
        assert {"model_ms", "received_at", "top_label"} <= set(fault["known"])
