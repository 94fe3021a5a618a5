"""Filters over HTTP as text, JSON and links; refusals with positions; cursors of one filter."""

import json
from typing import Any

import pytest

from tests.integration.stored_inferences import NewInference, at

from .conftest import LINES, Api

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
_BIG = "12345678901234567890"


@pytest.fixture(autouse=True)
async def _store_inferences(api: Api) -> None:
    camera = ("camera-id", "string", "c")
    await api.store(
        *(NewInference(f"id-{n}", at(n), [("frame_number", "int", n), camera]) for n in range(6)),
        NewInference("big", at(9), [("frame_number", "int", _BIG)]),
    )


async def test_every_spelling_in_bodies_links_and_streams(api: Api) -> None:
    def compare(operator: str, number: str) -> str:
        args = f'[{{"property": "frame_number"}}, {number}]'
        return f'{{"op": "{operator}", "args": {args}}}'

    for raw in (
        f'{{"filter": "frame_number = {_BIG}"}}',
        f'{{"filter": {compare("=", _BIG)}}}',
        f'{{"filter": {compare(">", "12345678901234567889.5")}}}',
        '{"filter_lang": "cql2-text", "filter": "frame_number > 100"}',
        json.dumps({"filter-lang": "cql2-json", "filter": compare(">", "100")}),
        '{"filter": "frame_number > 2", "metadata_filter":'
        ' [{"key": "frame_number", "operator": "gt", "value": 5}]}',
    ):
        answer = await api.post(_QUERY, content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert [item["inference_id"] for item in answer.json()["items"]] == ["big"], raw
    text: dict[str, Any] = {"filter": "frame_number > 4", "limit": 1}
    tree = '{"op": ">", "args": [{"property": "frame_number"}, 4]}'
    for link in (text, text | {"filter": tree, "filter-lang": "cql2-json"}):
        page = await api.read(_PATH, **link)
        assert [item["inference_id"] for item in page["items"]] == ["big"]
    wrong = await api.read(_PATH, status=422, filter="frame_number >", limit=1)
    assert wrong["type"] == "/docs/errors#invalid-filter"
    body = {"filter": "frame_number BETWEEN 1 AND 3", "fields": ["inference_id"]}
    answer = await api.post(_QUERY, json=body, headers=LINES)
    assert answer.text.count("\n") == 4


async def test_refusals_point_to_the_fault(api: Api) -> None:
    cases: list[tuple[Any, str, list[str]]] = [
        ("frame_number == 3", "invalid-filter", ["line 1, column 15", "^", "="]),
        ("camera-id = 3", "unknown-metadata-key", ["camera-id"]),
        ("frame_numer > 3", "unknown-metadata-key", ["frame_number", "frame_numer"]),
        ("frame_number > 'abc'", "impossible-comparison", ["int", "frame_number"]),
        ('frame_number = "abc"', "unknown-metadata-key", ["abc"]),
        ("S_CROSSES(location, POINT(1 1))", "conformance-class-not-kept", ["spatial-functions"]),
        ({"op": "nope", "args": []}, "invalid-filter", ["nope"]),
        (17, "invalid-filter", []),
    ]
    for filter, kind, words in cases:
        answer = await api.post(_QUERY, json={"filter": filter})
        problem = answer.json()
        assert problem["type"] == f"/docs/errors#{kind}", problem
        assert answer.status_code == (501 if "not-kept" in kind else 422), filter
        assert answer.headers["content-type"] == "application/problem+json", filter
        assert problem["errors"][0]["path"].startswith("filter"), filter
        for word in words:
            assert word in answer.text, filter
        count = await api.post(f"{_PATH}/count", json={"filter": filter})
        assert count.json() == problem, filter
    deep: Any = True
    for _ in range(400):
        deep = {"op": "not", "args": [deep]}
    for hostile in ("(" * 50_000, "NOT " * 20_000 + "ok", "a = " * 10_000, deep, "x" * 200_000):
        answer = await api.post(_QUERY, json={"filter": hostile})
        assert answer.status_code == 422, answer.text[:500]
    body = {"filter": "nothing = 1 OR frame_number = 3", "unknown_keys": "empty"}
    assert await api.find_ids(**body) == ["id-3"]
    page = await api.ask(_QUERY, {"sort": "nothing", "unknown_keys": "empty", "limit": 2})
    assert "'nothing' to sort by" in page["warnings"][0]
    assert (len(page["items"]), page["next"] is None) == (2, False)


async def test_cursor_depends_on_the_filter_but_not_its_spelling(api: Api) -> None:
    cursor = (await api.ask(_QUERY, {"filter": "frame_number > 1", "limit": 1}))["next"]
    again = {"op": ">", "args": [{"property": "frame_number"}, 1]}
    ids = await api.find_ids(filter=again, cursor=cursor)
    assert ids == [f"id-{n}" for n in range(5, 1, -1)]
    link = await api.read(_PATH, filter="frame_number>1", cursor=cursor)
    assert [item["inference_id"] for item in link["items"]] == ids
    for other in ({"filter": "frame_number > 2"}, {}, {"filter": "NOT frame_number > 1"}):
        problem = await api.ask(_QUERY, {**other, "cursor": cursor}, status=422)
        assert problem["type"] == "/docs/errors#invalid-cursor", other
