"""Aggregates over HTTP: the documentation's examples, bounds, refusals."""

import json
import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from inference_store.api import conditions
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.inference.events.event import Extras
from inference_store.query.aggregates import collector, run
from inference_store.query.counting import count_ended
from tests.integration.stored_inferences import START, NewInference, at
from tests.servers.marks import stored_counts

from .conftest import Api

_PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "filters.md").read_text()
_EXAMPLES = re.findall(r"```json aggregate\n(.*?)```\n\n```json answer\n(.*?)```", _PAGE, re.DOTALL)
_ONE, _ACROSS = "/v1/models/model/inferences/aggregate", "/v1/inferences/aggregate"


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


async def _aggregate(api: Api, body: Any, path: str = _ONE) -> Any:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = await api.post(path, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_float=Decimal)


async def test_examples_and_refusals(api: Api) -> None:
    await api.store(*_make_inferences())
    assert len(_EXAMPLES) == 5
    for body, expected in _EXAMPLES:
        assert await _aggregate(api, body) == json.loads(expected, parse_float=Decimal), body
    functions = ("min", "max", "sum", "mean", "percentiles", "histogram", "top", "distinct")
    measures = [{"function": function, "of": "frame_number"} for function in functions]
    nothing = {"received_at": {"from": "2027-01-01T00:00:00Z"}}
    question = {**nothing, "measures": ["count", *measures]}
    [group] = (await _aggregate(api, question))["groups"]
    measured = group["measures"]
    names = ("count", "mean(frame_number)", "sum(frame_number)")
    assert [measured[name] for name in names] == [0, None, None]
    assert measured["percentiles(frame_number)"]["values"][0] == {"at": 50, "value": None}
    assert measured["histogram(frame_number)"] == {"bins": [], "below": 0, "above": 0}
    for by in ("data_source", "label", {"time": "day"}, {"histogram": {"of": "frame_number"}}):
        assert (await _aggregate(api, {**question, "group_by": [by]}))["groups"] == []
    unknown = {**_measure("top", "frame_numer"), "unknown_keys": "empty"}
    [warning] = (await _aggregate(api, unknown))["warnings"]
    assert "'frame_numer'. The nearest are frame_number" in warning
    for refused, path, words in _REFUSED:
        [fault] = (await api.ask(_ONE, refused, status=422))["errors"]
        assert fault["path"] == path, refused
        assert words in fault["message"], refused
    await api.transact(registrations.put, "model", Details(project_id="p"))
    answer = await _aggregate(api, {"project_id": "p", "group_by": ["project_id"]}, _ACROSS)
    assert answer["groups"] == [{"key": {"project_id": "p"}, "measures": {"count": 4}}]


def _measure(function: str, *of: str, **more: Any) -> dict[str, Any]:
    measure = {"function": function, **({"of": of[0]} if of else {}), **more}
    return {"measures": [measure]}


def _group(by: Any) -> dict[str, Any]:
    return {"group_by": [by]}


def _histogram(of: str, *bounds: Any) -> dict[str, Any]:
    return _group({"histogram": {"of": of, **({"bounds": bounds} if bounds else {})}})


# the body, the path of its fault, and words of the message
_REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (_measure("median", "x"), "measures[0].function", "known are"),
    ({"measures": ["counts"]}, "measures[0].function", "the nearest is count"),
    (_measure("mean"), "measures[0].of", "required by mean"),
    (_measure("mean", "frame_numer"), "measures[0].of", "no metadata key"),
    (_measure("mean", "data_source"), "measures[0].of", "string"),
    (_measure("distinct", "frame_number", prefix="1"), "measures[0].prefix", "is of texts"),
    (_measure("mean", "ok"), "measures[0].of", "bool"),
    (_measure("count", "location"), "measures[0].of", "nothing"),
    (_measure("min", "prediction.x"), "measures[0].of", "no"),
    (_measure("min", "top_score", at=[5]), "measures[0].at", "min does not take it"),
    ({"measures": [{"function": "count"}] * 2}, "measures", "twice"),
    (_group("prediction.score"), "group_by[0]", "inferences"),
    (_group({"time": "hour", "zone": "Europe/Belin"}), "group_by[0].zone", "Berlin"),
    (_group({"time": "year"}), "group_by[0].time", "minute"),
    ({"group_by": ["ok", "label", "data_source", "model_id"]}, "group_by", "3"),
    (_group({"label": True, "time": "day"}), "group_by[0]", "one of"),
    (_histogram("ok"), "group_by[0].histogram.of", "number"),
    (
        _measure("histogram", "received_at", bounds=[1, 2]),
        "measures[0].bounds",
        "instants: 2026-11-01T00:00:00Z",
    ),
    (
        _histogram("frame_number", "2026", "2027-01-01"),
        "group_by[0].histogram.bounds[0]",
        "a time in RFC 3339",
    ),
    (
        _histogram("frame_number", "2026-01-01", "2027-01-01"),
        "group_by[0].histogram.bounds",
        "numbers",
    ),
    (_measure("histogram", "n", bounds=[1, "2027-01-01"]), "measures[0].bounds", "all must be"),
    ({"order": "-nothing"}, "order", "known are count"),
]


async def _check_too_many(api: Api, *bodies: dict[str, Any]) -> list[str]:
    """Check that these are refused for too many groups; return the reasons."""
    problems = [await api.ask(_ONE, body, status=422) for body in bodies]
    assert {problem["type"] for problem in problems} == {"/docs/errors#too-many-groups"}
    return [problem["detail"] for problem in problems]


async def test_shows_a_hundred_groups_by_default(api: Api) -> None:
    await api.store(*(NewInference(str(n), at(n), [("k", "int", str(n))]) for n in range(103)))
    answer = await _aggregate(api, {"group_by": ["k"]})
    assert len(answer["groups"]) == 100
    assert answer["others"] == {"groups": 3, "inferences": 3}
    assert len((await _aggregate(api, {"group_by": ["k"], "limit": 1000}))["groups"]) == 103


async def test_ambiguous_name(api: Api) -> None:
    await api.store(NewInference(metadata=[("ok", "string", "yes")], extras=Extras(ok=False)))
    problem = await api.ask(_ONE, _group("ok"), status=422)
    assert problem["errors"][0]["known"] == ["inference.ok", "metadata.ok"]
    for name, value in (("inference.ok", False), ("metadata.ok", "yes")):
        [group] = (await _aggregate(api, _group(name)))["groups"]
        assert group["key"] == {name: value}


async def test_a_key_of_several_types(api: Api) -> None:
    items = [("int", "1"), ("int", "2"), ("string", "x")]
    await api.store(*(NewInference(str(n), at(n), [("k", *i)]) for n, i in enumerate(items)))
    answer = await _aggregate(api, {"group_by": ["k"], "order": "k"})
    assert [group["key"]["k"] for group in answer["groups"]] == [1, 2, None]
    assert "1 time as string" in answer["warnings"][0]
    as_text = {"group_by": [{"of": {"name": "k", "type": "string"}}], "order": "-k"}
    answer = await _aggregate(api, as_text)
    assert [group["key"]["k"] for group in answer["groups"]] == ["x", None]
    assert answer["warnings"] == []


async def test_percentiles_of_many_values_are_approximate(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "EXACT_VALUES", 50)
    values = [Decimal(n * n) / 7 - 20 for n in range(100)]
    items = [[("n", "float", str(value))] for value in values]
    await api.store(*(NewInference(str(n), at(n), item) for n, item in enumerate(items)))
    measure = {"function": "percentiles", "of": "n", "at": [1, 10, 50, 99, 100]}
    answer = await _aggregate(api, {"measures": [measure]})
    percentiles = answer["groups"][0]["measures"]["percentiles(n)"]
    assert answer["approximate"]
    assert percentiles["approximate"]
    for percentile in percentiles["values"]:
        exact = sorted(values)[int(percentile["at"]) - 1]
        assert abs(percentile["value"] - exact) <= abs(exact) * Decimal("0.005"), percentile


async def test_too_many_groups(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.store(*(NewInference(str(n), at(n), [("n", "int", str(n))]) for n in range(9)))
    await api.store(NewInference("late", START + timedelta(minutes=9)))
    monkeypatch.setattr(collector, "MOST_ROWS", 5)
    monkeypatch.setattr(run, "MOST_SPANS", 5)
    await _check_too_many(api, _group("n"), _measure("top", "n"), _group({"time": "minute"}))


async def test_measures_share_the_row_budget(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("a", "b", "c")
    inferences = (NewInference(str(n), at(n), [(k, "int", str(n)) for k in keys]) for n in range(5))
    await api.store(*inferences)
    monkeypatch.setattr(collector, "MOST_ROWS", 6)  # twelve in all
    tops = [{"function": "top", "of": key} for key in keys]
    await _aggregate(api, {"measures": tops[:2]})
    await _aggregate(
        api, {"measures": [{**tops[0], "limit": n, "as": f"{n}"} for n in range(1, 9)]}
    )
    last = {"function": "distinct", "of": "c"}
    for detail in await _check_too_many(api, {"measures": tops}, {"measures": [*tops[:2], last]}):
        assert "together" in detail


async def test_explained(api: Api) -> None:
    long = "é" * 400
    metadata = [("n", "int", "1"), ("s", "string", long)]
    await api.store(NewInference(metadata=metadata, predictions=[("car", 0.5)]))
    measures = [
        {"function": "sum", "of": "prediction.score"},
        {"function": "top", "of": "s"},
        {"function": "distinct", "of": "s"},
    ]
    names = set()
    for path in (_ONE, _ACROSS):
        for body in (
            {"measures": measures},
            {"measures": measures[:2], "group_by": [{"time": "hour"}]},
            {"group_by": ["n"]},
        ):
            assert "explain" not in await _aggregate(api, body, path)
            explanation = (await _aggregate(api, {**body, "explain": True}, path))["explain"]
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
async def test_uses_stored_counts(api: Api) -> None:
    await api.store(*_make_inferences())
    await count_ended(api.engine, seconds=60, before=at(10 * 86_400))
    for path in (_ONE, _ACROSS):
        answer = await _aggregate(api, {"group_by": ["label"], "explain": True}, path)
        counts = {group["key"]["label"]: group["measures"]["count"] for group in answer["groups"]}
        assert counts == {"person": 3, "car": 1, None: 1}
        names = {step["what"] for step in answer["explain"]["steps"]}
        assert {name.split(":")[0] for name in names} == {"read stored counts"}
        assert answer["explain"]["partitions_visited"] == 0
    counted = await api.ask("/v1/models/model/inferences/count", {"explain": True})
    assert counted["count"] == 4
    [step] = counted["explain"]["steps"]
    assert step["what"].startswith("read stored counts")


async def test_which_models(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for model_id in ("a", "b"):
        await api.store(NewInference(model_id=model_id))
    both = await api.ask(_ACROSS, {"project_id": "p", "model_ids": ["a"]}, status=422)
    assert "cannot be combined with `project_id`" in str(both)
    for body in ({"project_id": "none"}, {"model_ids": ["a", "none"]}):
        await api.ask(_ACROSS, body, status=404)
    monkeypatch.setattr(conditions, "MOST_MODELS", 1)
    many = await api.ask(_ACROSS, {}, status=422)
    assert many["errors"][0]["path"] == "model_ids"
    [group] = (await _aggregate(api, {"model_ids": ["b"]}, _ACROSS))["groups"]
    assert group["measures"]["count"] == 1
