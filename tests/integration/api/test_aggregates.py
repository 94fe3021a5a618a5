"""Aggregates over HTTP: the documentation's examples, bounds, refusals."""

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api import model_selection
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.index.tables import inference
from inference_store.inference.events.event import Extras
from inference_store.query.aggregates import budget, run, spans
from inference_store.query.counting import count_ended
from tests.integration.query.lock_time import hold_partition_until_late
from tests.integration.stored_inferences import START, NewInference, at, store
from tests.servers.marks import stored_counts

_PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "query.md").read_text()
_EXAMPLES = re.findall(r"```json aggregate\n(.*?)```\n\n```json answer\n(.*?)```", _PAGE, re.DOTALL)
_ONE = "/v1/models/model/inferences/aggregate"


def _make_inferences() -> list[NewInference]:
    """Return the inferences of the documentation's examples."""
    rows: list[tuple[str | None, list[tuple[str | None, float | None]], bool | None]] = [
        ("hallway", [("person", 0.9), ("car", 0.4)], True),
        ("hallway", [("person", 0.3)], False),
        ("door", [("person", 0.9)], True),
        (None, [], None),
    ]
    return [
        NewInference(
            f"id-{n}",
            at(1800 * n),
            [("frame_number", "int", str(n + 1)), *([("data_source", "string", s)] if s else [])]
            if n < 3
            else [],
            predictions,
            extras=Extras(ok=ok),
        )
        for n, (s, predictions, ok) in enumerate(rows)
    ]


async def _aggregate(client: httpx.AsyncClient, body: Any, path: str = _ONE) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_float=Decimal)


@pytest.mark.parametrize("index", range(len(_EXAMPLES)))
async def test_example(client: httpx.AsyncClient, engine: AsyncEngine, index: int) -> None:
    await store(engine, *_make_inferences())
    body, expected = (json.loads(text, parse_float=Decimal) for text in _EXAMPLES[index])
    answer = await client.post(_ONE, content=_EXAMPLES[index][0].encode(), headers=_JSON)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text, parse_float=Decimal) == expected, body


_JSON = {"Content-Type": "application/json"}


def test_page_has_examples() -> None:
    assert len(_EXAMPLES) == 5


async def test_nothing_matches(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    functions = ("min", "max", "sum", "mean", "percentiles", "histogram", "top", "distinct")
    measures = [{"function": function, "of": "frame_number"} for function in functions]
    nothing = {"received_at": {"from": "2027-01-01T00:00:00Z"}}
    body = {**nothing, "measures": [{"function": "count"}, *measures]}
    [group] = (await _aggregate(client, body))["groups"]
    measured = group["measures"]
    assert [measured["count"], measured["mean(frame_number)"], measured["sum(frame_number)"]] == [
        0,
        None,
        None,
    ]
    assert measured["percentiles(frame_number)"]["values"][0] == {"at": 50, "value": None}
    assert measured["histogram(frame_number)"] == {"bins": [], "below": 0, "above": 0}
    for by in ("data_source", "label", {"time": "day"}, {"histogram": {"of": "frame_number"}}):
        assert (await _aggregate(client, {**body, "group_by": [by]}))["groups"] == []


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"measures": [{"function": "median", "of": "x"}]}, "measures[0].function", "known are"),
        ({"measures": [{"function": "mean"}]}, "measures[0]", "`of` is missing"),
        ({"measures": [{"function": "mean", "of": "frame_numer"}]}, "measures[0].of", "unknown"),
        ({"measures": [{"function": "mean", "of": "data_source"}]}, "measures[0].of", "string"),
        ({"measures": [{"function": "mean", "of": "ok"}]}, "measures[0].of", "bool"),
        ({"measures": [{"function": "count", "of": "location"}]}, "measures[0].of", "nothing"),
        ({"measures": [{"function": "min", "of": "prediction.x"}]}, "measures[0].of", "no"),
        ({"measures": [{"function": "min", "of": "top_score", "at": [5]}]}, "measures[0]", "at"),
        ({"measures": [{"function": "count"}] * 2}, "body", "twice"),
        ({"group_by": ["prediction.score"]}, "group_by[0]", "inferences"),
        ({"group_by": [{"time": "hour", "zone": "Europe/Belin"}]}, "group_by[0].zone", "Berlin"),
        ({"group_by": [{"time": "year"}]}, "group_by[0].time", "minute"),
        ({"group_by": ["ok", "label", "data_source", "model_id"]}, "group_by", "3"),
        ({"group_by": [{"label": True, "time": "day"}]}, "group_by[0]", "one of"),
        ({"group_by": [{"histogram": {"of": "ok"}}]}, "group_by[0].histogram.of", "number"),
        (
            {"measures": [{"function": "histogram", "of": "received_at", "bounds": [1, 2]}]},
            "measures[0].bounds",
            "instants: 2026-11-01T00:00:00Z",
        ),
        (
            {"group_by": [{"histogram": {"of": "frame_number", "bounds": ["2026", "2027-01-01"]}}]},
            "group_by[0].histogram.bounds[0]",
            "an instant as RFC 3339 writes it",
        ),
        (
            {
                "group_by": [
                    {"histogram": {"of": "frame_number", "bounds": ["2026-01-01", "2027-01-01"]}}
                ]
            },
            "group_by[0].histogram.bounds",
            "numbers",
        ),
        (
            {"measures": [{"function": "histogram", "of": "n", "bounds": [1, "2027-01-01"]}]},
            "measures[0].bounds",
            "not both",
        ),
        ({"order": "-nothing"}, "body", "known are count"),
    ],
)
async def test_rejects_invalid_request(
    client: httpx.AsyncClient, engine: AsyncEngine, body: Any, path: str, words: str
) -> None:
    await store(engine, *_make_inferences())
    answer = await client.post(_ONE, json=body)
    assert answer.status_code == 422, answer.text
    [fault] = answer.json()["errors"]
    assert fault["path"] == path
    assert words in fault["message"]


async def test_shows_a_hundred_groups_by_default(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, *(NewInference(str(n), at(n), [("k", "int", str(n))]) for n in range(103)))
    answer = await _aggregate(client, {"group_by": ["k"]})
    assert len(answer["groups"]) == 100
    assert answer["others"] == {"groups": 3, "inferences": 3}
    assert len((await _aggregate(client, {"group_by": ["k"], "limit": 1000}))["groups"]) == 103


async def test_ambiguous_name(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, NewInference(metadata=[("ok", "string", "yes")], extras=Extras(ok=False)))
    answer = await client.post(_ONE, json={"group_by": ["ok"]})
    assert answer.json()["errors"][0]["known"] == ["inference.ok", "metadata.ok"]
    for name, value in (("inference.ok", False), ("metadata.ok", "yes")):
        [group] = (await _aggregate(client, {"group_by": [name]}))["groups"]
        assert group["key"] == {name: value}


async def test_a_key_of_several_types(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    items = [("int", "1"), ("int", "2"), ("string", "x")]
    await store(engine, *(NewInference(str(n), at(n), [("k", *i)]) for n, i in enumerate(items)))
    answer = await _aggregate(client, {"group_by": ["k"], "order": "k"})
    assert [group["key"]["k"] for group in answer["groups"]] == [1, 2, None]
    assert "1 time as string" in answer["warnings"][0]
    as_text = {"group_by": [{"of": {"name": "k", "type": "string"}}], "order": "-k"}
    answer = await _aggregate(client, as_text)
    assert [group["key"]["k"] for group in answer["groups"]] == ["x", None]
    assert answer["warnings"] == []


async def test_percentiles_of_many_values_are_approximate(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "EXACT_VALUES", 50)
    values = [Decimal(n * n) / 7 - 20 for n in range(100)]
    items = [[("n", "float", str(value))] for value in values]
    await store(engine, *(NewInference(str(n), at(n), item) for n, item in enumerate(items)))
    measure = {"function": "percentiles", "of": "n", "at": [1, 10, 50, 99, 100]}
    answer = await _aggregate(client, {"measures": [measure]})
    percentiles = answer["groups"][0]["measures"]["percentiles(n)"]
    assert answer["approximate"]
    assert percentiles["approximate"]
    for percentile in percentiles["values"]:
        exact = sorted(values)[int(percentile["at"]) - 1]
        assert abs(percentile["value"] - exact) <= abs(exact) * Decimal("0.005"), percentile


async def test_too_many_groups(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(engine, *(NewInference(str(n), at(n), [("n", "int", str(n))]) for n in range(9)))
    monkeypatch.setattr(budget, "MOST_ROWS", 5)
    monkeypatch.setattr(spans, "MOST_SPANS", 5)
    top = [{"function": "top", "of": "n"}]
    await store(engine, NewInference("late", START + timedelta(minutes=9)))
    for body in ({"group_by": ["n"]}, {"measures": top}, {"group_by": [{"time": "minute"}]}):
        answer = await client.post(_ONE, json=body)
        assert answer.status_code == 422
        assert answer.json()["type"] == "/docs/errors#too-many-groups"


async def test_measures_share_the_row_budget(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("a", "b", "c")
    inferences = (NewInference(str(n), at(n), [(k, "int", str(n)) for k in keys]) for n in range(5))
    await store(engine, *inferences)
    monkeypatch.setattr(budget, "MOST_ROWS", 6)  # twelve in all
    tops = [{"function": "top", "of": key} for key in keys]
    await _aggregate(client, {"measures": tops[:2]})
    same = [{**tops[0], "limit": n, "as": f"top-{n}"} for n in range(1, 10)]
    await _aggregate(client, {"measures": same})
    first = [{"function": "distinct", "of": key} for key in keys]
    for body in ({"measures": tops}, {"measures": [*tops[:2], first[2]]}, {"measures": first}):
        answer = await client.post(_ONE, json=body)
        assert answer.status_code == 422
        assert answer.json()["type"] == "/docs/errors#too-many-groups"
        assert "together" in answer.json()["detail"]


async def test_groups_across_partitions_count_once(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [START + timedelta(days=n) for n in range(6)]
    inferences = (
        NewInference(f"{n}-{day:%d}", day + timedelta(seconds=n), [("n", "int", str(n))])
        for day in days
        for n in range(3)
    )
    await store(engine, *inferences)
    monkeypatch.setattr(budget, "MOST_ROWS", 4)
    condition = {"metadata_filter": [{"key": "n", "operator": "lt", "value": 3}]}
    answer = await _aggregate(client, {**condition, "group_by": ["n"], "order": "n"})
    assert [group["measures"]["count"] for group in answer["groups"]] == [6, 6, 6]


async def test_timeout(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    async with hold_partition_until_late(engine, inference, START):
        answer = await client.post(_ONE, json={"group_by": ["ok"]})
    assert answer.status_code == 503
    assert answer.json()["type"] == "/docs/errors#query-timeout"
    assert "received_at" in answer.json()["detail"]


async def test_a_moved_model_has_its_project(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, *_make_inferences())
    async with engine.begin() as connection:
        await registrations.put(connection, "model", Details(project_id="p"))
    path = "/v1/inferences/aggregate"
    answer = await _aggregate(client, {"project_id": "p", "group_by": ["project_id"]}, path)
    assert answer["groups"] == [{"key": {"project_id": "p"}, "measures": {"count": 4}}]


async def test_predictions_without_a_label_are_a_group(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    await store(engine, NewInference(predictions=[("car", 0.5), (None, 0.25), (None, None)]))
    of = "prediction.score"
    for function, expected in (("sum", [Decimal("0.5"), Decimal("0.25")]), ("top", [1, 1])):
        body = {"measures": [{"function": function, "of": of, "as": "m"}], "group_by": ["label"]}
        groups = (await _aggregate(client, {**body, "order": "-label"}))["groups"]
        assert {group["key"]["label"] for group in groups} == {"car", None}
        by_label = {group["key"]["label"]: group["measures"]["m"] for group in groups}
        measures = [by_label["car"], by_label[None]]
        if function == "top":
            measures = [sum(value["count"] for value in measure["values"]) for measure in measures]
        assert measures == expected


async def test_explained(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    long = "é" * 400
    metadata = [("n", "int", "1"), ("s", "string", long)]
    await store(engine, NewInference(metadata=metadata, predictions=[("car", 0.5)]))
    measures = [
        {"function": "sum", "of": "prediction.score"},
        {"function": "top", "of": "s"},
        {"function": "distinct", "of": "s"},
    ]
    names = set()
    for path in (_ONE, "/v1/inferences/aggregate"):
        for body in (
            {"measures": measures},
            {"measures": measures[:2], "group_by": [{"time": "hour"}]},
            {"group_by": ["n"]},
        ):
            assert "explain" not in await _aggregate(client, body, path)
            explanation = (await _aggregate(client, {**body, "explain": True}, path))["explain"]
            assert explanation["form"] == "everything"
            names |= {step["what"].split(":")[0] for step in explanation["steps"]}
            assert explanation["partitions_total"] == 1
    assert names == {
        "find the first inference",
        "find the last inference",
        "count the groups",
        "count by one key",
        "add up prediction",
        "count values of metadata",
        "read the first values",
        "read long texts whole",
    }


@stored_counts
async def test_uses_stored_counts(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, *_make_inferences())
    await count_ended(engine, seconds=60, before=at(10 * 86_400))
    body = {"group_by": ["label"], "explain": True}
    for path in (_ONE, "/v1/inferences/aggregate"):
        answer = await _aggregate(client, body, path)
        counts = {group["key"]["label"]: group["measures"]["count"] for group in answer["groups"]}
        assert counts == {"person": 3, "car": 1, None: 1}
        names = {step["what"] for step in answer["explain"]["steps"]}
        assert {name.split(":")[0] for name in names} == {"read stored counts"}
        assert answer["explain"]["partitions_visited"] == 0
    counted = await client.post("/v1/models/model/inferences/count", json={"explain": True})
    assert counted.json()["count"] == 4
    [step] = counted.json()["explain"]["steps"]
    assert step["what"].startswith("read stored counts")


async def test_which_models(
    client: httpx.AsyncClient, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model_id in ("a", "b"):
        await store(engine, NewInference(model_id=model_id))
    path = "/v1/inferences/aggregate"
    both = await client.post(path, json={"project_id": "p", "model_ids": ["a"]})
    assert both.status_code == 422
    assert "cannot both be given" in both.text
    for body in ({"project_id": "none"}, {"model_ids": ["a", "none"]}):
        assert (await client.post(path, json=body)).status_code == 404
    monkeypatch.setattr(model_selection, "MOST_MODELS", 1)
    many = await client.post(path, json={})
    assert many.status_code == 422
    assert many.json()["errors"][0]["path"] == "model_ids"
    assert (await _aggregate(client, {"model_ids": ["b"]}, path))["groups"][0]["measures"][
        "count"
    ] == 1
