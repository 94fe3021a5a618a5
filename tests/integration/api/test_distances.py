"""Pages sorted by distance: each item has its distance."""

import json
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import metadata_number
from tests.integration.query.lock_time import hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at, store

_PATH = "/v1/models/model/inferences"
_SORT = "distance(location, POINT(13.4 52.5))"
_DEGREE = 111_195.08  # metres, along the meridian


@pytest.fixture(autouse=True)
async def _store_inferences(engine: AsyncEngine) -> None:
    """Store ten north of the point, each a degree farther, and two without a location."""
    located = [
        NewInference(
            f"id-{n}",
            at(n * 7000.0),
            [("longitude", "float", "13.4"), ("latitude", "float", f"{52.5 + n}")],
        )
        for n in range(10)
    ]
    nowhere = [NewInference(f"nowhere-{n}", at(n * 5000.0), [("n", "int", "1")]) for n in range(2)]
    await store(engine, *located, *nowhere)


async def _read_pages(client: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while not items or cursor is not None:
        answer = await client.post(path, json={**body, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next"]
    return items


@pytest.mark.parametrize("path", [f"{_PATH}/query", "/v1/inferences/query"])
async def test_the_nearest_come_first(client: httpx.AsyncClient, path: str) -> None:
    items = await _read_pages(client, path, sort=_SORT, limit=5)
    ids = [item["inference_id"] for item in items]
    assert ids == [*(f"id-{n}" for n in range(10)), "nowhere-0", "nowhere-1"]
    *metres, last_but_one, last = [item["distance_metres"] for item in items]
    assert metres == pytest.approx([n * _DEGREE for n in range(10)], rel=1e-6)
    assert (last_but_one, last) == (None, None)
    farthest = await _read_pages(client, path, sort=f"-{_SORT}", limit=5)
    ids = [item["inference_id"] for item in farthest]
    assert ids == [*(f"id-{n}" for n in reversed(range(10))), "nowhere-1", "nowhere-0"]


async def test_distances_equal_those_of_filters(client: httpx.AsyncClient) -> None:
    body = {"filter": f"{_SORT} < 250000", "sort": _SORT, "fields": ["distance_metres"]}
    items = await _read_pages(client, f"{_PATH}/query", **body)
    assert [list(item) for item in items] == [["distance_metres"]] * 3
    for item in items:
        exact = f"{_SORT} = {item['distance_metres']!r}"
        answer = await client.post(f"{_PATH}/count", json={"filter": exact})
        assert answer.json()["count"] == 1


async def test_as_a_link_and_as_a_stream(client: httpx.AsyncClient) -> None:
    link = await client.get(_PATH, params={"sort": f"-{_SORT}", "limit": 2})
    assert [item["inference_id"] for item in link.json()["items"]] == ["id-9", "id-8"]
    lines = {"Accept": "application/x-ndjson"}
    answer = await client.post(f"{_PATH}/query", json={"sort": _SORT}, headers=lines)
    *items, end = [json.loads(line) for line in answer.text.splitlines()]
    assert end["count"] == len(items) == 12
    assert items[0]["distance_metres"] == 0


async def test_other_sorts_have_no_distance(client: httpx.AsyncClient) -> None:
    [item, *_] = await _read_pages(client, f"{_PATH}/query", limit=1000)
    assert "distance_metres" not in item


async def test_timeout_is_a_503(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    async with hold_partition_until_late(engine, metadata_number, at(0)):
        answer = await client.post(f"{_PATH}/query", json={"sort": _SORT})
    assert (answer.status_code, answer.json()["type"]) == (503, "/docs/errors#query-timeout")


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"sort": "distance(location, POINT(52.5 131.4))"}, "sort", "lies off the map"),
        ({"sort": "-distance(location, POINT(13.4 52.5)"}, "sort", "the sort ends too early"),
        ({"sort": f"{_SORT} / 1000"}, "sort", "by a name or by a distance alone"),
        ({"sort": "distance(location)"}, "sort", "takes two arguments, not 1"),
        ({"sort": "distance(n, POINT(1 2))"}, "sort", "takes the location and a point"),
        ({"sort": "distance"}, "sort", "unknown name"),
        ({"sort": "location"}, "sort", "it has no order"),
        (
            {"fields": ["distance_metres"]},
            "fields",
            "only pages sorted by distance have it, as in distance(location",
        ),
    ],
)
async def test_refusals(
    client: httpx.AsyncClient, body: dict[str, Any], path: str, words: str
) -> None:
    answer = await client.post(f"{_PATH}/query", json=body)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert fault["path"] == path
    assert words in fault["message"]
    if body.get("sort") in {"distance", "location"}:
        assert fault["known"][0] == _SORT


async def test_a_cursor_belongs_to_its_point(client: httpx.AsyncClient) -> None:
    first = await client.post(f"{_PATH}/query", json={"sort": _SORT, "limit": 2})
    body = {"sort": "distance(location, POINT(13.4 52.6))", "cursor": first.json()["next"]}
    answer = await client.post(f"{_PATH}/query", json=body)
    assert answer.json()["type"] == "/docs/errors#invalid-cursor"
