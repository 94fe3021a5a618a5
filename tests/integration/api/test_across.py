"""Queries across models over HTTP: choice of models, sorts, cursors, explanations."""

from typing import Any

import pytest

from inference_store.index import registrations
from inference_store.index.registrations import Details
from tests.integration.stored_inferences import NewInference, at
from tests.servers.marks import ON_CITUS

from .conftest import Api

_QUERY, _COUNT = "/v1/inferences/query", "/v1/inferences/count"
_AGGREGATE = "/v1/inferences/aggregate"
_ONE = "/v1/models/a/inferences"


@pytest.fixture(autouse=True)
async def store_models(api: Api) -> None:
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
        await api.store(*inferences)
        await api.transact(registrations.put, model_id, Details(project_id=project))


async def _read_pages(
    api: Api, path: str = _QUERY, **body: Any
) -> tuple[list[str], list[dict[str, Any]]]:
    ids, pages = [], []
    while True:
        page = await api.ask(path, body)
        pages.append(page)
        ids += [item["inference_id"] for item in page["items"]]
        if page["next"] is None:
            return ids, pages
        body["cursor"] = page["next"]


async def test_pages_of_models_are_sorted(api: Api) -> None:
    expected = [f"{model}{n}" for n in (3, 2, 1, 0) for model in "cba"]
    ids, pages = await _read_pages(api, limit=5)
    assert ids == expected
    assert {item["model_id"] for page in pages for item in page["items"]} == {"a", "b", "c"}
    project_ids, _ = await _read_pages(api, project_id="p", sort="received_at", limit=3)
    assert project_ids == [id for id in reversed(expected) if id[0] != "c"]
    named_ids, _ = await _read_pages(api, model_ids=["c", "a", "c"], include=["urls"])
    assert named_ids == [id for id in expected if id[0] != "b"]
    body: dict[str, Any]
    for body, number in (({}, 12), ({"project_id": "p"}, 8), ({"model_ids": ["b"]}, 4)):
        assert await api.ask(_COUNT, body) == {"count": number, "warnings": []}
    for path in (_QUERY, _COUNT):
        await api.ask(path, {"project_id": "p", "model_ids": ["a"]}, status=422)
        await api.ask(path, {"model_ids": []}, status=422)
        problem = await api.ask(path, {"model_ids": ["a", "nobody"]}, status=404)
        assert [fault["path"] for fault in problem["errors"]] == ["model_ids[1]"]
        await api.ask(path, {"project_id": "nothing"}, status=404)
    descending = ["b3", "a3", "b2", "a2", "b1", "a1", "b0", "a0", "c3", "c2", "c1", "c0"]
    ids, pages = await _read_pages(api, sort="-rank", limit=5)
    assert ids == descending
    assert pages[0]["searched_back_to"] is None
    ascending, _ = await _read_pages(api, sort="rank", limit=1)
    assert ascending == descending[7::-1] + descending[:7:-1]
    long, pages = await _read_pages(api, sort="s", limit=2, model_ids=["a", "b"])
    assert sorted(long) == sorted(id for id in descending if id[0] != "c")
    assert all(len(page["next"] or "") < 2048 for page in pages)
    link = await api.read(_ONE, sort="-rank", limit=2)
    assert [item["inference_id"] for item in link["items"]] == ["a3", "a2"]
    rest, _ = await _read_pages(api, f"{_ONE}/query", sort="-top_score", limit=3)
    assert rest == ["a3", "a2", "a1", "a0"]
    unknown = await api.ask(_QUERY, {"sort": "rnak", "project_id": "p"}, status=422)
    assert unknown["errors"][0]["path"] == "sort"
    assert "rank" in unknown["errors"][0]["known"]
    cursor = {"cursor": (await api.ask(_QUERY, {"sort": "rank", "limit": 2}))["next"]}
    in_project = {"sort": "rank", "project_id": "p"}
    for other in ({"sort": "-rank"}, in_project, {"sort": "received_at"}, {"sort": "s"}):
        refused = await api.ask(_QUERY, other | cursor, status=422)
        assert refused["type"] == "/docs/errors#invalid-cursor", other
    for damaged in ("", "x", "A" * 40):
        await api.ask(f"{_ONE}/query", {"sort": "rank", "cursor": damaged}, status=422)


async def test_explained(api: Api) -> None:
    condition = {"metadata_filter": [{"key": "rank", "operator": "gte", "value": 424242424242}]}
    for body, path, form in (
        ({}, _QUERY, "everything; time"),
        (condition, _QUERY, "metadata; time"),
        # on Citus the lists of several models are not counted
        ({**condition, "sort": "-s"}, _QUERY, f"metadata; {'walk' if ON_CITUS else 'few'}"),
        ({"sort": "rank"}, _QUERY, "everything; walk"),
        ({"sort": "top_score"}, f"{_ONE}/query", "everything; sort"),
        (condition, f"{_ONE}/query", "metadata; time"),
        (condition, _COUNT, "metadata"),
        ({"ok": True}, f"{_ONE}/count", "property"),
    ):
        explanation = (await api.ask(path, {**body, "explain": True}))["explain"]
        assert explanation["form"].startswith(form), (path, body)
        assert 0 < explanation["partitions_visited"] <= explanation["partitions_total"]
        taken = sum(step["milliseconds"] for step in explanation["steps"])
        assert explanation["milliseconds"] >= taken
        for step in explanation["steps"]:
            assert step["estimated_rows"] >= 0
            assert step["actual_rows"] >= 0
            assert " on " in step["what"]
        assert "424242424242" not in str(explanation)
    # the index of an equal value has the page in order: no other inference is read
    equal = await api.ask(f"{_ONE}/query", {"filter": "rank = 1", "explain": True})
    assert all(" on inference" not in step["what"] for step in equal["explain"]["steps"])
    # many models take the statements of one; on Citus each is a part or a statement of its own
    more = [f"d{n}" for n in range(9)]
    for model_id in more:
        await api.transact(registrations.put, model_id, Details())
    aggregate = {"measures": [{"function": "mean", "of": "rank"}], "group_by": [{"time": "day"}]}
    distinct = {"measures": [{"function": "distinct", "of": "rank", "limit": 3}]}
    for path, asked in (
        (_QUERY, {"filter": "rank >= 0"}),
        (_COUNT, {"filter": "rank >= 0"}),
        (_AGGREGATE, aggregate),
        (_AGGREGATE, distinct),
    ):
        one, many = [
            await api.ask(path, {**asked, "model_ids": of, "explain": True})
            for of in (["a"], ["a", *more])
        ]
        if not ON_CITUS:
            assert len(one["explain"]["steps"]) == len(many["explain"]["steps"]), path
        assert one | {"explain": None} == many | {"explain": None}
    counted = await api.ask(_COUNT, {"explain": True})
    steps = counted["explain"]["steps"]
    assert sum(step["actual_rows"] for step in steps) == counted["count"] == 12
    assert "explain" not in await api.ask(_QUERY, {})
