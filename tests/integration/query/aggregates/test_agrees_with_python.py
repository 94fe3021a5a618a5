"""Aggregates in SQL agree with a plain loop over the inferences."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations
from inference_store.index.tables import erasing
from inference_store.inference.events.event import Extras
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    ByHistogram,
    ByLabel,
    ByName,
    ByTime,
    Measure,
    Name,
    aggregate,
    targets,
)
from inference_store.query.ask import QueryRequest
from inference_store.query.bounded import Deadline
from inference_store.query.counting import count_ended
from inference_store.query.filters.from_conditions import Asked
from inference_store.query.operators import OPERATORS
from tests.integration.stored import Made, store
from tests.properties import examples

from . import plain

# The night in which Europe's clocks go back: 01:00 UTC is 02:00 in Berlin for the second time.
_NIGHT = datetime(2026, 10, 24, 21, 30, tzinfo=UTC)
_LATER = datetime(2100, 1, 1, tzinfo=UTC)
_LONG = "é" * 400
_INSTANTS = st.builds(
    lambda quarters, micros: _NIGHT + timedelta(minutes=15 * quarters, microseconds=micros),
    st.integers(0, 40),
    st.sampled_from([-1, 0, 1]),
)
_NUMBERS = st.sampled_from(["0.1", "0.2", "-3", "12345678901234567890.5", "7", "7.0", "1e30"])
_ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "n": st.tuples(st.just("float"), _NUMBERS),
        "s": st.tuples(
            st.just("string"), st.sampled_from(["a", "ab", "B", "", _LONG, _LONG + "x"])
        ),
        "b": st.tuples(st.just("bool"), st.sampled_from(["true", "false"])),
        "t": st.tuples(
            st.just("timestamp"), st.sampled_from(["2026-11-01", "2026-11-02T00:00:01Z"])
        ),
        "tags": st.tuples(st.just("json"), st.sampled_from(['["x", "y", "x"]', '["y"]', "[]"])),
    },
)
_PREDICTIONS = st.one_of(
    st.none(),
    st.lists(
        st.tuples(
            st.sampled_from(["person", "car", None]),
            st.sampled_from([0.1, 0.30000000000000004, 0.3, 0.5, None]),
        ),
        max_size=3,
    ),
)
_INFERENCES = st.lists(
    st.tuples(_INSTANTS, _ITEMS, _PREDICTIONS, st.sampled_from([True, False, None])),
    min_size=1,
    max_size=10,
)
_BOUNDS = (Decimal("-3"), Decimal("0.2"), Decimal("0.3"), Decimal(7))
_TIMES = (_NIGHT, _NIGHT + timedelta(hours=2), datetime(2026, 11, 2, 0, 0, 1, tzinfo=UTC))
_OPERANDS: dict[str, tuple[str, plain.Values]] = {
    "n": ("number", plain.key("n", "number")),
    "s": ("string", plain.key("s", "string")),
    "b": ("bool", plain.key("b", "bool")),
    "t": ("timestamp", plain.key("t", "timestamp")),
    "tags[]": ("string", plain.key("tags[]", "string")),
    "ok": ("bool", plain.one(lambda made: made.extras.ok)),
    "request_problem": ("string", plain.one(lambda made: "over_cap" if made.flags else None)),
    "received_at": ("timestamp", plain.one(lambda made: made.received_at)),
    "prediction_count": (
        "number",
        plain.one(
            lambda made: None if made.predictions is None else Decimal(len(made.predictions))
        ),
    ),
    "top_score": ("number", plain.one(lambda made: _top(made, 1))),
    "top_label": ("string", plain.one(lambda made: _top(made, 0))),
    "label": ("string", plain.labels),
    "prediction.score": ("number", plain.scores),
}
_SPANS = st.sampled_from(["minute", "hour", "day", "week", "month", "PT15M", "PT6H", "P2D"])
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])


def _top(made: Made, place: int) -> Any:
    if not made.predictions:
        return None
    value = made.predictions[0][place]
    return Decimal(repr(value)) if isinstance(value, float) else value


def _grouping(data: st.DataObject, place: int) -> tuple[Any, plain.Values]:
    """A grouping, and what it means."""
    name, path = f"g{place}", f"group_by[{place}]"
    kind = data.draw(st.sampled_from(["name", "label", "time", "histogram"]))
    if kind == "label":
        return ByLabel(name, path), plain.labels
    if kind == "time":
        unit, zone = data.draw(_SPANS), data.draw(_ZONES)
        return ByTime(name, path, unit, zone), plain.spans(unit, zone)
    if kind == "histogram":
        of = data.draw(st.sampled_from(["n", "top_score", "prediction_count", "t", "received_at"]))
        bounds: Any = _TIMES if _OPERANDS[of][0] == "timestamp" else _BOUNDS
        by = ByHistogram(name, path, Name(of, None, path), bounds=bounds)
        return by, plain.binned(_OPERANDS[of][1], bounds)
    names = ["n", "s", "b", "tags[]", "ok", "top_label", "top_score", "request_problem"]
    of = data.draw(st.sampled_from(names))
    return ByName(name, path, Name(of, None, path)), _OPERANDS[of][1]


def _measure(data: st.DataObject, place: int) -> tuple[Measure, dict[str, Any]]:
    function = AGGREGATES[data.draw(st.sampled_from(sorted(set(AGGREGATES) - {"histogram"})))]
    fitting = [name for name, (kind, _) in _OPERANDS.items() if kind in function.kinds]
    of = Name(data.draw(st.sampled_from(fitting)), None, f"measures[{place}].of")
    options: dict[str, Any] = {}
    if "at" in function.options:
        options["at"] = (Decimal(0), Decimal("33.3"), Decimal(50), Decimal(100))
    if "limit" in function.options:
        options["limit"] = data.draw(st.integers(1, 3))
    if "prefix" in function.options and _OPERANDS[of.text][0] == "string":
        options["prefix"] = data.draw(st.sampled_from(["", "a", "p", "éé"]))
    if "is" in function.options:
        options["expected"] = data.draw(st.booleans())
    asked = Measure(function=function, of=of, name=f"m{place}", path="", **options)
    return asked, options


def _question(data: st.DataObject) -> tuple[QueryRequest, Any]:
    """What must hold, and the same in Python."""
    kind = data.draw(st.sampled_from(["all", "all", "key", "both", "prediction", "ok", "window"]))
    event(f"filter: {kind}")
    if kind == "key":
        asked = Asked("metadata_filter[0]", "n", None, OPERATORS["gte"], 0)
        return QueryRequest(metadata=[asked], unknown_keys="empty"), lambda made: any(
            value >= 0 for value in plain.key("n", "number")(made)
        )
    if kind == "both":
        # two indexes lead: one is chosen
        asked = Asked("metadata_filter[0]", "n", None, OPERATORS["gte"], 0)
        return (
            QueryRequest(metadata=[asked], predicted=True, labels=["person"], unknown_keys="empty"),
            lambda made: (
                "person" in plain.labels(made)
                and any(value >= 0 for value in plain.key("n", "number")(made))
            ),
        )
    if kind == "prediction":
        labels = ["person"]
        return QueryRequest(
            predicted=True, labels=labels
        ), lambda made: "person" in plain.labels(made)
    if kind == "ok":
        return QueryRequest(ok=True), lambda made: made.extras.ok is True
    if kind == "window":
        since = data.draw(_INSTANTS)
        return QueryRequest(since=since), lambda made: made.received_at >= since
    return QueryRequest(), lambda _: True


def _key(key: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        (value["from"], value["to"]) if isinstance(value, dict) else value for value in key.values()
    )


def _value(function: str, value: Any) -> Any:
    match function:
        case "percentiles":
            assert (value["approximate"], value["method"]) == (False, "exact")
            return [each["value"] for each in value["values"]]
        case "top":
            return [(each["value"], each["count"]) for each in value["values"]], value["others"]
        case "distinct":
            return value["values"], value["more"]
        case _:
            return value


def _made(inferences: Sequence[Any], model_id: str) -> list[Made]:
    return [
        Made(
            str(n),
            at,
            [(name, kind, value) for name, (kind, value) in items.items()],
            predictions,
            extras=Extras(ok=ok),
            model_id=model_id,
            flags=("capture_request_over_cap",) if n % 3 == 0 else (),
        )
        for n, (at, items, predictions, ok) in enumerate(inferences)
    ]


@settings(
    max_examples=examples(60),
    # a database for each try: shrinking would take minutes
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(inferences=_INFERENCES, others=_INFERENCES, data=st.data())
async def test_sql_agrees_with_python(
    engine: AsyncEngine, inferences: Sequence[Any], others: Sequence[Any], data: st.DataObject
) -> None:
    ids = [str(uuid.uuid4()) for _ in range(2)]
    made = _made(inferences, ids[0])
    counted = data.draw(st.sampled_from(["never", "all", "before some came late"]))
    event(f"counts are stored: {counted}")
    if counted == "before some came late":
        await store(engine, *made[: len(made) // 2 + 1])
        await count_ended(engine, seconds=60, before=_LATER)
    model = await store(engine, *made)
    # Another model is part of the question, or of no answer.
    second = _made(others, ids[1])
    await store(engine, *second)
    if counted == "all":
        await count_ended(engine, seconds=60, before=_LATER)
    across = data.draw(st.booleans())
    gone = [made[0]] if data.draw(st.booleans()) else []
    async with engine.begin() as connection:
        for each in gone:
            row = {"model": model, "uid": each.uid, "scope": "inference", "erasure": uuid.uuid4()}
            await connection.execute(erasing.insert().values(row))
    there = [each for each in made if each not in gone] + (second if across else [])
    async with engine.connect() as connection:
        known = await registrations.known(connection, ids if across else ids[:1])
        for _ in range(6):
            question, holds = _question(data)
            count = data.draw(st.sampled_from([0, 1, 1, 2, 3]))
            groupings = [_grouping(data, n) for n in range(count)]
            # a count alone may be read from an index
            measures = [_measure(data, n) for n in range(data.draw(st.sampled_from([0, 2, 2])))]
            all_of = Measure(function=AGGREGATES["count"], of=None, name="all", path="")
            asked = Aggregation(
                measures=(all_of, *(measure for measure, _ in measures)),
                group_by=tuple(by for by, _ in groupings),
                limit=10_000,
            )
            found, _ = await targets(connection, list(known.values()), question)
            answer = await aggregate(
                connection, found, asked, deadline=Deadline.after(60), unknown_keys="empty"
            )
            matching = [each for each in there if holds(each)]
            expected = plain.grouped(matching, [values for _, values in groupings])
            shown = {_key(group["key"]): group["measures"] for group in answer.groups}
            assert len(shown) == len(answer.groups)
            # A group of nothing but predictions without a label is left out; the one group of what
            # is not grouped is always there, empty or not.
            counts = {key: group["all"] for key, group in shown.items() if group["all"] or not key}
            assert counts == {key: len(members) for key, members in expected.items()}
            _check_without_inferences(shown, groupings, measures)
            for measure, options in measures:
                name = measure.of.text if measure.of else ""
                of_predictions = name == "prediction.score"
                members = (
                    _beside_labels(matching, groupings, expected) if of_predictions else expected
                )
                _check(measure, options, asked, shown, members)


def _check_without_inferences(shown: Any, groupings: Any, measures: Any) -> None:
    """Only where predictions are measured by label, and of what has no label."""
    empty = [key for key, group in shown.items() if key and not group["all"]]
    places = [place for place, (by, _) in enumerate(groupings) if isinstance(by, ByLabel)]
    for key in empty:
        assert any(key[place] is None for place in places)
        assert any(m.of is not None and m.of.text == "prediction.score" for m, _ in measures)


def _beside_labels(matching: list[Made], groupings: Any, keys: Any) -> dict[Any, list[Made]]:
    """By the other groups alone: a prediction's own label says in which group it is measured."""
    others = [
        (place, values)
        for place, (by, values) in enumerate(groupings)
        if not isinstance(by, ByLabel)
    ]
    return {
        key: [
            each
            for each in matching
            if all(key[place] in (values(each) or [None]) for place, values in others)
        ]
        for key in keys
    }


def _check(
    measure: Measure, options: dict[str, Any], asked: Aggregation, shown: Any, expected: Any
) -> None:
    assert measure.of is not None
    name, function = measure.of.text, measure.function.name
    values = _OPERANDS[name][1]
    event(f"{function} of {name}")
    labels = [n for n, by in enumerate(asked.group_by) if isinstance(by, ByLabel)]
    for key, members in expected.items():
        if name == "prediction.score":
            # of the very predictions that have the group's label
            found = [
                Decimal(repr(score))
                for each in members
                for label, score in each.predictions or ()
                if score is not None and all(label == key[n] for n in labels)
            ]
        else:
            within = [n for n, by in enumerate(asked.group_by) if _same(by, name)]
            found = [
                value
                for each in members
                for value in values(each)
                if all(value == key[n] for n in within)
            ]
        value = _value(function, shown[key][measure.name])
        assert value == plain.measured(function, found, options), (function, name, key)


def _same(by: Any, name: str) -> bool:
    """A many-valued name that is grouped by and measured: the value is the group's own."""
    if isinstance(by, ByLabel):
        return name == "label"
    return isinstance(by, ByName) and by.of.text == name


async def _measured(engine: AsyncEngine, *measures: Measure, **asked: Any) -> Any:
    """The measures of the one group of all."""
    async with engine.connect() as connection:
        known = list((await registrations.known(connection, ["model"])).values())
        found, _ = await targets(connection, known, QueryRequest(**asked))
        answer = await aggregate(
            connection,
            found,
            Aggregation(measures=measures),
            deadline=Deadline.after(60),
            unknown_keys="empty",
        )
    [group] = answer.groups
    return group["measures"]


@pytest.mark.parametrize("asked", [{}, {"until": _LATER, "ok": True}])
async def test_the_bins_of_timestamps_hold_every_value(
    engine: AsyncEngine, asked: dict[str, Any]
) -> None:
    """Also of the first and the last day there is."""
    made = [
        Made(
            str(n),
            _NIGHT + timedelta(hours=n),
            [
                ("t", "timestamp", f"2026-11-{1 + n // 2:02d}T12:00:00Z"),
                ("far", "timestamp", "0001-01-01" if n % 2 else "9999-12-31T23:59:59.999999Z"),
            ],
            extras=Extras(ok=True),
        )
        for n in range(48)
    ]
    await store(engine, *made)
    histogram = Measure(
        function=AGGREGATES["histogram"], of=Name("t", None, ""), name="t", path="", bins=12
    )
    given = replace(histogram, name="given", bounds=(_at(2), _at(5)))
    received = replace(histogram, of=Name("received_at", None, ""), name="received_at", bins=2)
    far = replace(histogram, of=Name("far", None, ""), name="far", bins=1)
    found = await _measured(engine, histogram, given, received, far, **asked)
    assert found["t"]["bins"] == [
        {"from": _at(day), "to": _at(day + 2), "count": 2 if day in {0, 24} else 4}
        for day in range(0, 26, 2)
    ]
    assert found["given"] == {
        "bins": [{"from": _at(2), "to": _at(5), "count": 6}],
        **{"below": 2, "above": 40},
    }
    assert sum(each["count"] for each in found["received_at"]["bins"]) == 48
    # Nothing comes after the last instant: it is above the last bin.
    [whole] = found["far"]["bins"]
    assert (whole["count"], found["far"]["below"], found["far"]["above"]) == (24, 0, 24)


def _at(day: int) -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day - 1)


async def test_a_key_that_nobody_sent_is_of_the_kind_of_its_bounds(engine: AsyncEngine) -> None:
    await store(engine, Made("0", _NIGHT))
    histogram = Measure(function=AGGREGATES["histogram"], of=Name("t", None, ""), name="t", path="")
    numbers = replace(histogram, name="numbers", bounds=_BOUNDS)
    times = replace(histogram, name="times", bounds=_TIMES)
    found = await _measured(engine, numbers, times)
    assert [each["count"] for each in found["numbers"]["bins"]] == [0, 0, 0]
    assert [each["count"] for each in found["times"]["bins"]] == [0, 0]


async def test_the_bins_of_a_histogram_hold_every_value(engine: AsyncEngine) -> None:
    made = [Made(str(n), _NIGHT + timedelta(hours=n), [("n", "float", str(n))]) for n in range(50)]
    await store(engine, *made)
    measure = Measure(
        function=AGGREGATES["histogram"], of=Name("n", None, ""), name="h", path="", bins=5
    )
    given = replace(measure, name="given", bounds=(Decimal(10), Decimal(20), Decimal(40)))
    async with engine.connect() as connection:
        known = list((await registrations.known(connection, ["model"])).values())
        found, _ = await targets(connection, known, QueryRequest())
        asked = Aggregation(measures=(measure, given))
        answer = await aggregate(connection, found, asked, deadline=Deadline.after(60))
    [group] = answer.groups
    bins = group["measures"]["h"]["bins"]
    assert [(each["from"], each["to"], each["count"]) for each in bins] == [
        (10 * n, 10 * n + 10, 10) for n in range(5)
    ]
    assert group["measures"]["given"] == {
        "bins": [{"from": 10, "to": 20, "count": 10}, {"from": 20, "to": 40, "count": 20}],
        "below": 10,
        "above": 10,
    }
