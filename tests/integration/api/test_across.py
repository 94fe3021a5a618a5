"""Queries across models over HTTP: choice of models, sorts, cursors, explanations."""

from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations
from inference_store.index.registrations import Details
from tests.integration.stored_inferences import NewInference, at, store

_QUERY, _COUNT = "/v1/inferences/query", "/v1/inferences/count"
_ONE = "/v1/models/a/inferences"


async def _store_models(engine: AsyncEngine) -> None:
    """Store models a and b of project p, and c of none; a and b have the key `rank`, c `hidden`."""
    for index, (model_id, project) in enumerate((("a", "p"), ("b", "p"), ("c", None))):
        key = "hidden" if model_id == "c" else "rank"
        inferences = [
            NewInference(
                f"{model_id}{n}",
                at(n * 50_000 + index),
                [(key, "int", str(n * 10 + index)), ("s", "string", "x" * 600 + str(n))],
                [("person", n / 10)],
                model_id=model_id,
            )
            for n in range(4)
        ]
        await store(engine, *inferences)
        async with engine.begin() as connection:
            await registrations.put(connection, model_id, Details(project_id=project))


async def _read_pages(
    client: httpx.AsyncClient, path: str = _QUERY, **body: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    ids, pages = [], []
    while True:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        pages.append(page)
        ids += [item["inference_id"] for item in page["items"]]
        if page["next"] is None:
            return ids, pages
        body["cursor"] = page["next"]


async def test_which_models(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _store_models(engine)
    expected = [f"{model}{n}" for n in (3, 2, 1, 0) for model in "cba"]
    ids, pages = await _read_pages(client, limit=5)
    assert ids == expected
    assert {item["model_id"] for page in pages for item in page["items"]} == {"a", "b", "c"}
    project_ids, _ = await _read_pages(client, project_id="p", sort="received_at", limit=3)
    assert project_ids == [id for id in reversed(expected) if id[0] != "c"]
    named_ids, _ = await _read_pages(client, model_ids=["c", "a", "c"], include=["urls"])
    assert named_ids == [id for id in expected if id[0] != "b"]
    body: dict[str, Any]
    for body, number in (({}, 12), ({"project_id": "p"}, 8), ({"model_ids": ["b"]}, 4)):
        assert (await client.post(_COUNT, json=body)).json() == {"count": number, "warnings": []}
    for path in (_QUERY, _COUNT):
        for body, status in (
            ({"project_id": "p", "model_ids": ["a"]}, 422),
            ({"model_ids": []}, 422),
            ({"model_ids": ["a", "nobody"]}, 404),
            ({"project_id": "nothing"}, 404),
        ):
            assert (await client.post(path, json=body)).status_code == status


async def test_sorts(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _store_models(engine)
    descending = ["b3", "a3", "b2", "a2", "b1", "a1", "b0", "a0", "c3", "c2", "c1", "c0"]
    ids, pages = await _read_pages(client, sort="-rank", limit=5)
    assert ids == descending
    assert pages[0]["searched_back_to"] is None
    ascending, _ = await _read_pages(client, sort="rank", limit=1)
    assert ascending == descending[7::-1] + descending[:7:-1]
    long, pages = await _read_pages(client, sort="s", limit=2, model_ids=["a", "b"])
    assert sorted(long) == sorted(id for id in descending if id[0] != "c")
    assert all(len(page["next"] or "") < 2048 for page in pages)
    link = await client.get(_ONE, params={"sort": "-rank", "limit": 2})
    assert [item["inference_id"] for item in link.json()["items"]] == ["a3", "a2"]
    rest, _ = await _read_pages(client, f"{_ONE}/query", sort="-top_score", limit=3)
    assert rest == ["a3", "a2", "a1", "a0"]


async def test_refusals(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _store_models(engine)
    unknown = await client.post(_QUERY, json={"sort": "rnak", "project_id": "p"})
    assert (unknown.status_code, unknown.json()["errors"][0]["path"]) == (422, "sort")
    assert "rank" in unknown.json()["errors"][0]["known"]
    page = (await client.post(_QUERY, json={"sort": "rank", "limit": 2})).json()
    for other in (
        {"sort": "-rank"},
        {"sort": "rank", "project_id": "p"},
        {"sort": "received_at"},
        {"sort": "s"},
    ):
        refused = await client.post(_QUERY, json={**other, "cursor": page["next"]})
        assert refused.json()["type"] == "/docs/errors#invalid-cursor", other
    for cursor in ("", "x", "A" * 40):
        refused = await client.post(f"{_ONE}/query", json={"sort": "rank", "cursor": cursor})
        assert refused.status_code == 422, refused.text


async def test_explained(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await _store_models(engine)
    condition = {"metadata_filter": [{"key": "rank", "operator": "gte", "value": 424242424242}]}
    for body, path, form in (
        ({}, _QUERY, "everything; time"),
        (condition, _QUERY, "metadata; time"),
        ({**condition, "sort": "-s"}, _QUERY, "metadata; few"),
        ({"sort": "rank"}, _QUERY, "everything; walk"),
        ({"sort": "top_score"}, f"{_ONE}/query", "everything; sort"),
        (condition, f"{_ONE}/query", "metadata; time"),
        (condition, _COUNT, "metadata"),
        ({"ok": True}, f"{_ONE}/count", "property"),
    ):
        answer = await client.post(path, json={**body, "explain": True})
        assert answer.status_code == 200, answer.text
        explanation = answer.json()["explain"]
        assert explanation["form"].startswith(form)
        assert 0 < explanation["partitions_visited"] <= explanation["partitions_total"]
        assert explanation["milliseconds"] >= sum(
            step["milliseconds"] for step in explanation["steps"]
        )
        for step in explanation["steps"]:
            assert step["estimated_rows"] >= 0
            assert step["actual_rows"] >= 0
            assert " on " in step["what"]
        assert "424242424242" not in str(explanation)
    counted = await client.post(_COUNT, json={"explain": True})
    steps = counted.json()["explain"]["steps"]
    assert sum(step["actual_rows"] for step in steps) == counted.json()["count"] == 12
    assert "explain" not in (await client.post(_QUERY, json={})).json()
