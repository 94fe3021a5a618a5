"""Pages sorted by distance: each item has its distance."""

import json
from typing import Any

import pytest

from tests.integration.stored_inferences import NewInference, at

from .conftest import LINES, Api

_PATH = "/v1/models/model/inferences"
_SORT = "distance(location, POINT(13.4 52.5))"
_DEGREE = 111_195.08  # metres, along the meridian


@pytest.fixture(autouse=True)
async def _store_inferences(api: Api) -> None:
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
    await api.store(*located, *nowhere)


async def _read_pages(api: Api, path: str, **body: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor = None
    while not items or cursor is not None:
        page = await api.ask(path, {**body, "cursor": cursor})
        items += page["items"]
        cursor = page["next"]
    return items


async def test_the_nearest_come_first_at_the_distance_of_filters(api: Api) -> None:
    names = [f"id-{n}" for n in range(10)]
    for path in (f"{_PATH}/query", "/v1/inferences/query"):
        items = await _read_pages(api, path, sort=_SORT, limit=5)
        ids = [item["inference_id"] for item in items]
        assert ids == [*names, "nowhere-0", "nowhere-1"], path
        *metres, last_but_one, last = [item["distance_metres"] for item in items]
        assert metres == pytest.approx([n * _DEGREE for n in range(10)], rel=1e-6), path
        assert (last_but_one, last) == (None, None), path
        farthest = await _read_pages(api, path, sort=f"-{_SORT}", limit=5)
        ids = [item["inference_id"] for item in farthest]
        assert ids == [*reversed(names), "nowhere-1", "nowhere-0"], path
    [item, *_] = await _read_pages(api, f"{_PATH}/query", limit=1000)
    assert "distance_metres" not in item
    body = {"filter": f"{_SORT} < 250000", "sort": _SORT, "fields": ["distance_metres"]}
    items = await _read_pages(api, f"{_PATH}/query", **body)
    assert [list(item) for item in items] == [["distance_metres"]] * 3
    for item in items:
        exact = f"{_SORT} = {item['distance_metres']!r}"
        assert (await api.ask(f"{_PATH}/count", {"filter": exact}))["count"] == 1
    link = await api.read(_PATH, sort=f"-{_SORT}", limit=2)
    assert [item["inference_id"] for item in link["items"]] == ["id-9", "id-8"]
    answer = await api.post(f"{_PATH}/query", json={"sort": _SORT}, headers=LINES)
    *items, end = [json.loads(line) for line in answer.text.splitlines()]
    assert end["count"] == len(items) == 12
    assert items[0]["distance_metres"] == 0


async def test_refusals(api: Api) -> None:
    for sort, words in (
        ("distance(location, POINT(52.5 131.4))", "lies off the map"),
        ("-distance(location, POINT(13.4 52.5)", "the sort ends too early"),
        (f"{_SORT} / 1000", "by a name or by a distance alone"),
        ("distance(location)", "takes two arguments, not 1"),
        ("distance(n, POINT(1 2))", "takes the location and a point"),
        ("distance", "there is no property and no metadata key"),
        ("location", "it has no order"),
    ):
        [fault] = (await api.ask(f"{_PATH}/query", {"sort": sort}, status=422))["errors"]
        assert fault["path"] == "sort", sort
        assert words in fault["message"], sort
        if sort in {"distance", "location"}:
            assert fault["known"][0] == _SORT
    fields = {"fields": ["distance_metres"]}
    [fault] = (await api.ask(f"{_PATH}/query", fields, status=422))["errors"]
    assert fault["path"] == "fields"
    words = "only pages sorted by distance have it, as in distance(location"
    assert words in fault["message"]
    first = await api.ask(f"{_PATH}/query", {"sort": _SORT, "limit": 2})
    body = {"sort": "distance(location, POINT(13.4 52.6))", "cursor": first["next"]}
    problem = await api.ask(f"{_PATH}/query", body, status=422)
    assert problem["type"] == "/docs/errors#invalid-cursor"
