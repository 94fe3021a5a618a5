"""Filters over HTTP as text, JSON and links; refusals with positions; cursors of one filter."""

from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
_BIG = "12345678901234567890"


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    inferences = [
        NewInference(
            f"id-{n}", at(n), [("frame_number", "int", str(n)), ("camera-id", "string", "c")]
        )
        for n in range(6)
    ]
    await store(engine, *inferences, NewInference("big", at(9), [("frame_number", "int", _BIG)]))


async def _query(client: httpx.AsyncClient, raw: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return await client.post(_QUERY, content=raw, headers=headers)


async def _find_ids(client: httpx.AsyncClient, raw: str) -> list[str]:
    answer = await _query(client, raw)
    assert answer.status_code == 200, answer.text
    return [item["inference_id"] for item in answer.json()["items"]]


@pytest.mark.parametrize(
    "raw",
    [
        '{"filter": "frame_number = 12345678901234567890"}',
        '{"filter": {"op": "=", "args": [{"property": "frame_number"}, 12345678901234567890]}}',
        '{"filter": {"op": ">", "args": [{"property": "frame_number"}, 12345678901234567889.5]}}',
        '{"filter_lang": "cql2-text", "filter": "frame_number > 100"}',
        '{"filter-lang": "cql2-json", "filter":'
        ' "{\\"op\\": \\">\\", \\"args\\": [{\\"property\\": \\"frame_number\\"}, 100]}"}',
        '{"filter": "frame_number > 2", "metadata_filter":'
        ' [{"key": "frame_number", "operator": "gt", "value": 5}]}',
    ],
)
async def test_every_spelling(client: httpx.AsyncClient, raw: str) -> None:
    assert await _find_ids(client, raw) == ["big"]


async def test_links(client: httpx.AsyncClient) -> None:
    text: dict[str, Any] = {"filter": "frame_number > 4", "limit": 1}
    tree = '{"op": ">", "args": [{"property": "frame_number"}, 4]}'
    for link in (text, text | {"filter": tree, "filter-lang": "cql2-json"}):
        answer = await client.get(_PATH, params=link)
        assert [item["inference_id"] for item in answer.json()["items"]] == ["big"]
    wrong = await client.get(_PATH, params={"filter": "frame_number >", "limit": 1})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "/docs/errors#invalid-filter")


@pytest.mark.parametrize(
    ("filter", "kind", "words"),
    [
        ("frame_number == 3", "invalid-filter", ["line 1, column 15", "^", "="]),
        ("camera-id = 3", "unknown-metadata-key", ["camera-id"]),
        ("frame_numer > 3", "unknown-metadata-key", ["frame_number", "frame_numer"]),
        ("frame_number > 'abc'", "impossible-comparison", ["int", "frame_number"]),
        ('frame_number = "abc"', "unknown-metadata-key", ["abc"]),
        ("S_CROSSES(location, POINT(1 1))", "conformance-class-not-kept", ["spatial-functions"]),
        ({"op": "nope", "args": []}, "invalid-filter", ["nope"]),
        (17, "invalid-filter", []),
    ],
)
async def test_refusals_point_to_the_fault(
    client: httpx.AsyncClient, filter: Any, kind: str, words: list[str]
) -> None:
    answer = await client.post(_QUERY, json={"filter": filter})
    problem = answer.json()
    assert problem["type"] == f"/docs/errors#{kind}", problem
    assert answer.status_code == (501 if "not-kept" in kind else 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["errors"][0]["path"].startswith("filter")
    for word in words:
        assert word in answer.text
    count = await client.post(f"{_PATH}/count", json={"filter": filter})
    assert count.json() == problem


async def test_unknown_keys_may_count_as_empty(client: httpx.AsyncClient) -> None:
    body = '{"filter": "nothing = 1 OR frame_number = 3", "unknown_keys": "empty"}'
    assert await _find_ids(client, body) == ["id-3"]


async def test_cursor_depends_on_the_filter_but_not_its_spelling(
    client: httpx.AsyncClient,
) -> None:
    first = (await _query(client, '{"filter": "frame_number > 1", "limit": 1}')).json()
    cursor = first["next"]
    again = {"op": ">", "args": [{"property": "frame_number"}, 1]}
    rest = await client.post(_QUERY, json={"filter": again, "cursor": cursor})
    ids = [item["inference_id"] for item in rest.json()["items"]]
    assert ids == [f"id-{n}" for n in range(5, 1, -1)]
    link = await client.get(_PATH, params={"filter": "frame_number>1", "cursor": cursor})
    assert [item["inference_id"] for item in link.json()["items"]] == ids
    for other in ({"filter": "frame_number > 2"}, {}, {"filter": "NOT frame_number > 1"}):
        answer = await client.post(_QUERY, json={**other, "cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "/docs/errors#invalid-cursor")


async def test_hostile_filters_are_refused(client: httpx.AsyncClient) -> None:
    deep: Any = True
    for _ in range(400):
        deep = {"op": "not", "args": [deep]}
    for hostile in ("(" * 50_000, "NOT " * 20_000 + "ok", "a = " * 10_000, deep, "x" * 200_000):
        answer = await client.post(_QUERY, json={"filter": hostile})
        assert answer.status_code == 422, answer.text[:500]


async def test_a_filter_in_a_stream(client: httpx.AsyncClient) -> None:
    body = {"filter": "frame_number BETWEEN 1 AND 3", "fields": ["inference_id"]}
    answer = await client.post(_QUERY, json=body, headers={"Accept": "application/x-ndjson"})
    assert answer.text.count("\n") == 4
