"""The matches before and after an inference, and the cursors of items."""

from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.integration.stored_inferences import NewInference, at, store

_PATH = "/v1/models/model/inferences"
_INFERENCES = [NewInference(f"id-{n}", at(n * 40_000), [("n", "int", str(n))]) for n in range(8)]


async def _find_neighbours(
    client: httpx.AsyncClient, uid: UUID, **question: Any
) -> tuple[Any, Any]:
    answer = await client.post(f"{_PATH}/neighbours", json={"uid": str(uid), **question})
    assert answer.status_code == 200, answer.text
    neighbours = answer.json()
    assert neighbours["complete"]
    before, after = (
        side and side["inference_id"] for side in (neighbours["before"], neighbours["after"])
    )
    return before, after


async def test_before_and_after(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_INFERENCES)
    assert await _find_neighbours(client, _INFERENCES[3].uid) == ("id-4", "id-2")
    assert await _find_neighbours(client, _INFERENCES[0].uid) == ("id-1", None)
    assert await _find_neighbours(client, _INFERENCES[7].uid) == (None, "id-6")
    assert await _find_neighbours(client, _INFERENCES[3].uid, sort="received_at") == (
        "id-2",
        "id-4",
    )
    answer = await client.post(f"{_PATH}/neighbours", json={"uid": str(_INFERENCES[3].uid)})
    assert answer.json()["before"] == {
        "uid": str(_INFERENCES[4].uid),
        "inference_id": "id-4",
        "received_at": at(160_000).isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }


async def test_inside_a_filter(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    """The inference itself need not match, and may be erased."""
    await store(engine, *_INFERENCES)
    assert await _find_neighbours(client, _INFERENCES[3].uid, filter="n IN (1, 5)") == (
        "id-5",
        "id-1",
    )
    window = {"from": at(80_000).isoformat()}
    assert await _find_neighbours(client, _INFERENCES[2].uid, received_at=window) == ("id-3", None)
    for erased in ("id-3", "id-4"):
        assert (await client.delete(f"{_PATH}/{erased}")).status_code == 202
    assert await _find_neighbours(client, _INFERENCES[3].uid) == ("id-5", "id-2")


_POINT = "distance(location, POINT(13 52))"
_SORTS = ("n", "frame", "tags", "top_label", "model_ms", "inference_id", "inference_ids", _POINT)


def _make_irregular(number: int) -> NewInference:
    """Return an inference whose values are equal to others, multiple, or missing."""
    items = [("n", "int", str(number // 2)), ("tags", "json", f'["b{number % 3}", "a{number}"]')]
    if number % 4:
        items += [("frame", "int", str(7 - number)), ("latitude", "float", str(52 + number % 5))]
        items += [("longitude", "float", "13")]
    labels = [(f"label-{number % 3}", 0.5)] if number % 2 else []
    aliases = (f"alias-{9 - number}",)
    return NewInference(f"id-{number}", at(number * 40_000), items, labels, aliases)


@pytest.mark.parametrize("descending", ["", "-"])
@pytest.mark.parametrize("sort", _SORTS)
@pytest.mark.parametrize("filter", [None, "n > 0"])
async def test_neighbours_match_the_page_in_any_order(
    client: httpx.AsyncClient, engine: AsyncEngine, sort: str, descending: str, filter: str | None
) -> None:
    """Check each inference of the page, with and without a value to sort by."""
    inferences = [_make_irregular(index) for index in range(10)]
    await store(engine, *inferences)
    name = sort if sort != "tags" else "tags[]"
    question = {"sort": f"{descending}{name}", "filter": filter}
    page = (await client.post(f"{_PATH}/query", json=question)).json()["items"]
    ids = [None, *(item["inference_id"] for item in page), None]
    assert len(ids) == (12 if filter is None else 10)
    for index, item in enumerate(page, 1):
        neighbours = await _find_neighbours(client, UUID(item["uid"]), **question)
        assert neighbours == (ids[index - 1], ids[index + 1]), item["inference_id"]


async def test_other_orders_require_the_inference(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    """An inference that does not match has a position in the order; an erased one has none."""
    await store(engine, *_INFERENCES)
    question = {"sort": "-n", "filter": "n <> 3"}
    assert await _find_neighbours(client, _INFERENCES[3].uid, **question) == ("id-4", "id-2")
    window = {"received_at": {"from": at(160_000).isoformat()}}
    assert await _find_neighbours(client, _INFERENCES[3].uid, sort="n", **window) == (None, "id-4")
    assert (await client.delete(f"{_PATH}/id-3")).status_code == 202
    answer = await client.post(
        f"{_PATH}/neighbours", json={"uid": str(_INFERENCES[3].uid), **question}
    )
    assert answer.status_code == 404
    assert await _find_neighbours(client, _INFERENCES[2].uid, **question) == ("id-4", "id-1")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"uid": "id-3"},
        {"uid": str(UUID(int=1)), "filter": "n <"},
        {"uid": str(UUID(int=1)), "sort": "m"},
    ],
)
async def test_refused(client: httpx.AsyncClient, engine: AsyncEngine, body: Any) -> None:
    await store(engine, *_INFERENCES)
    assert (await client.post(f"{_PATH}/neighbours", json=body)).status_code == 422


@pytest.mark.parametrize("sort", ["-received_at", "received_at", "n", "-n"])
async def test_page_continues_after_any_item(
    client: httpx.AsyncClient, engine: AsyncEngine, sort: str
) -> None:
    await store(engine, *_INFERENCES)
    question = {"sort": sort, "limit": 8}
    answer = await client.post(f"{_PATH}/query", json={**question, "cursors": True})
    items = answer.json()["items"]
    for index, item in enumerate(items):
        body = {**question, "cursor": item["cursor"], "fields": ["uid"], "cursors": True}
        rest = (await client.post(f"{_PATH}/query", json=body)).json()["items"]
        assert [other["uid"] for other in rest] == [other["uid"] for other in items[index + 1 :]]
        assert rest == [
            {"uid": other["uid"], "cursor": other["cursor"]} for other in items[index + 1 :]
        ]
    plain = (await client.post(f"{_PATH}/query", json=question)).json()["items"]
    assert not any("cursor" in other for other in plain)
