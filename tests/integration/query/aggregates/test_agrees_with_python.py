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
    build_targets,
)
from inference_store.query.counting import count_ended
from inference_store.query.deadline import Deadline
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.operators import OPERATORS
from inference_store.query.preparation import QueryRequest
from tests.integration.stored_inferences import NewInference, store
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
    "n": ("number", plain.read_key("n", "number")),
    "s": ("string", plain.read_key("s", "string")),
    "b": ("bool", plain.read_key("b", "bool")),
    "t": ("timestamp", plain.read_key("t", "timestamp")),
    "tags[]": ("string", plain.read_key("tags[]", "string")),
    "ok": ("bool", plain.read_property(lambda inference: inference.extras.ok)),
    "request_problem": (
        "string",
        plain.read_property(lambda inference: "over_cap" if inference.flags else None),
    ),
    "received_at": ("timestamp", plain.read_property(lambda inference: inference.received_at)),
    "prediction_count": (
        "number",
        plain.read_property(
            lambda inference: (
                None if inference.predictions is None else Decimal(len(inference.predictions))
            )
        ),
    ),
    "top_score": ("number", plain.read_property(lambda inference: _top(inference, 1))),
    "top_label": ("string", plain.read_property(lambda inference: _top(inference, 0))),
    "label": ("string", plain.read_labels),
    "prediction.score": ("number", plain.read_scores),
}
_SPANS = st.sampled_from(["minute", "hour", "day", "week", "month", "PT15M", "PT6H", "P2D"])
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])


def _top(inference: NewInference, position: int) -> Any:
    if not inference.predictions:
        return None
    value = inference.predictions[0][position]
    return Decimal(repr(value)) if isinstance(value, float) else value


def _grouping(data: st.DataObject, position: int) -> tuple[Any, plain.Values]:
    """Draw a grouping; return it and its meaning in Python."""
    name, path = f"g{position}", f"group_by[{position}]"
    kind = data.draw(st.sampled_from(["name", "label", "time", "histogram"]))
    if kind == "label":
        return ByLabel(name, path), plain.read_labels
    if kind == "time":
        unit, zone = data.draw(_SPANS), data.draw(_ZONES)
        return ByTime(name, path, unit, zone), plain.find_span_start(unit, zone)
    if kind == "histogram":
        of = data.draw(st.sampled_from(["n", "top_score", "prediction_count", "t", "received_at"]))
        bounds: Any = _TIMES if _OPERANDS[of][0] == "timestamp" else _BOUNDS
        by = ByHistogram(name, path, Name(of, None, path), bounds=bounds)
        return by, plain.find_bins(_OPERANDS[of][1], bounds)
    names = ["n", "s", "b", "tags[]", "ok", "top_label", "top_score", "request_problem"]
    of = data.draw(st.sampled_from(names))
    return ByName(name, path, Name(of, None, path)), _OPERANDS[of][1]


def _measure(data: st.DataObject, position: int) -> tuple[Measure, dict[str, Any]]:
    function = AGGREGATES[data.draw(st.sampled_from(sorted(set(AGGREGATES) - {"histogram"})))]
    fitting = [name for name, (kind, _) in _OPERANDS.items() if kind in function.kinds]
    of = Name(data.draw(st.sampled_from(fitting)), None, f"measures[{position}].of")
    options: dict[str, Any] = {}
    if "at" in function.options:
        options["at"] = (Decimal(0), Decimal("33.3"), Decimal(50), Decimal(100))
    if "limit" in function.options:
        options["limit"] = data.draw(st.integers(1, 3))
    if "prefix" in function.options and _OPERANDS[of.text][0] == "string":
        options["prefix"] = data.draw(st.sampled_from(["", "a", "p", "éé"]))
    if "is" in function.options:
        options["expected"] = data.draw(st.booleans())
    measure = Measure(function=function, of=of, name=f"m{position}", path="", **options)
    return measure, options


def _question(data: st.DataObject) -> tuple[QueryRequest, Any]:
    """Draw conditions; return them and their meaning in Python."""
    kind = data.draw(st.sampled_from(["all", "all", "key", "both", "prediction", "ok", "window"]))
    event(f"filter: {kind}")
    if kind == "key":
        entry = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 0)
        return QueryRequest(metadata=[entry], unknown_keys="empty"), lambda inference: any(
            value >= 0 for value in plain.read_key("n", "number")(inference)
        )
    if kind == "both":
        # Two indexes could lead: one is chosen.
        entry = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 0)
        return (
            QueryRequest(metadata=[entry], predicted=True, labels=["person"], unknown_keys="empty"),
            lambda inference: (
                "person" in plain.read_labels(inference)
                and any(value >= 0 for value in plain.read_key("n", "number")(inference))
            ),
        )
    if kind == "prediction":
        labels = ["person"]
        return QueryRequest(
            predicted=True, labels=labels
        ), lambda inference: "person" in plain.read_labels(inference)
    if kind == "ok":
        return QueryRequest(ok=True), lambda inference: inference.extras.ok is True
    if kind == "window":
        since = data.draw(_INSTANTS)
        return QueryRequest(since=since), lambda inference: inference.received_at >= since
    return QueryRequest(), lambda _: True


def _key(key: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        (value["from"], value["to"]) if isinstance(value, dict) else value for value in key.values()
    )


def _value(function: str, value: Any) -> Any:
    match function:
        case "percentiles":
            assert (value["approximate"], value["method"]) == (False, "exact")
            return [item["value"] for item in value["values"]]
        case "top":
            return [(item["value"], item["count"]) for item in value["values"]], value["others"]
        case "distinct":
            return value["values"], value["more"]
        case _:
            return value


def _make_inferences(rows: Sequence[Any], model_id: str) -> list[NewInference]:
    return [
        NewInference(
            str(n),
            at,
            [(name, kind, value) for name, (kind, value) in items.items()],
            predictions,
            extras=Extras(ok=ok),
            model_id=model_id,
            flags=("capture_request_over_cap",) if n % 3 == 0 else (),
        )
        for n, (at, items, predictions, ok) in enumerate(rows)
    ]


@pytest.mark.long
@settings(
    max_examples=examples(60),
    # Each example needs a database: shrinking would take minutes.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(rows=_INFERENCES, other_rows=_INFERENCES, data=st.data())
async def test_sql_agrees_with_python(
    engine: AsyncEngine, rows: Sequence[Any], other_rows: Sequence[Any], data: st.DataObject
) -> None:
    ids = [str(uuid.uuid4()) for _ in range(2)]
    inferences = _make_inferences(rows, ids[0])
    counted = data.draw(st.sampled_from(["never", "all", "before some came late"]))
    event(f"counts are stored: {counted}")
    if counted == "before some came late":
        await store(engine, *inferences[: len(inferences) // 2 + 1])
        await count_ended(engine, seconds=60, before=_LATER)
    model = await store(engine, *inferences)
    # The other model is part of the question, or it must not appear in any answer.
    second = _make_inferences(other_rows, ids[1])
    await store(engine, *second)
    if counted == "all":
        await count_ended(engine, seconds=60, before=_LATER)
    across = data.draw(st.booleans())
    marked = [inferences[0]] if data.draw(st.booleans()) else []
    async with engine.begin() as connection:
        for inference in marked:
            row = {
                "model": model,
                "uid": inference.uid,
                "scope": "inference",
                "erasure": uuid.uuid4(),
            }
            await connection.execute(erasing.insert().values(row))
    visible = [inference for inference in inferences if inference not in marked] + (
        second if across else []
    )
    async with engine.connect() as connection:
        known_registrations = await registrations.find_by_ids(
            connection, ids if across else ids[:1]
        )
        for _ in range(6):
            question, holds = _question(data)
            count = data.draw(st.sampled_from([0, 1, 1, 2, 3]))
            groupings = [_grouping(data, n) for n in range(count)]
            # A count alone may be read from an index.
            measures = [_measure(data, n) for n in range(data.draw(st.sampled_from([0, 2, 2])))]
            all_of = Measure(function=AGGREGATES["count"], of=None, name="all", path="")
            aggregation = Aggregation(
                measures=(all_of, *(measure for measure, _ in measures)),
                group_by=tuple(by for by, _ in groupings),
                limit=10_000,
            )
            targets, _ = await build_targets(
                connection, list(known_registrations.values()), question
            )
            answer = await aggregate(
                connection, targets, aggregation, deadline=Deadline.after(60), unknown_keys="empty"
            )
            matching = [inference for inference in visible if holds(inference)]
            expected = plain.group_inferences(matching, [values for _, values in groupings])
            groups = {_key(group["key"]): group["measures"] for group in answer.groups}
            assert len(groups) == len(answer.groups)
            # A group of nothing but predictions without a label is left out; the one group of what
            # is not grouped is always there, empty or not.
            counts = {key: group["all"] for key, group in groups.items() if group["all"] or not key}
            assert counts == {key: len(members) for key, members in expected.items()}
            _check_without_inferences(groups, groupings, measures)
            for measure, options in measures:
                name = measure.of.text if measure.of else ""
                of_predictions = name == "prediction.score"
                members = (
                    _group_by_all_but_labels(matching, groupings, expected)
                    if of_predictions
                    else expected
                )
                _check(measure, options, aggregation, groups, members)


def _check_without_inferences(groups: Any, groupings: Any, measures: Any) -> None:
    """Check that only predictions without a label, measured by label, make such groups."""
    empty = [key for key, group in groups.items() if key and not group["all"]]
    places = [position for position, (by, _) in enumerate(groupings) if isinstance(by, ByLabel)]
    for key in empty:
        assert any(key[position] is None for position in places)
        assert any(m.of is not None and m.of.text == "prediction.score" for m, _ in measures)


def _group_by_all_but_labels(
    matching: list[NewInference], groupings: Any, keys: Any
) -> dict[Any, list[NewInference]]:
    """Group without the labels: the label of a prediction says in which group it is measured."""
    others = [
        (position, values)
        for position, (by, values) in enumerate(groupings)
        if not isinstance(by, ByLabel)
    ]
    return {
        key: [
            inference
            for inference in matching
            if all(key[position] in (values(inference) or [None]) for position, values in others)
        ]
        for key in keys
    }


def _check(
    measure: Measure, options: dict[str, Any], aggregation: Aggregation, groups: Any, expected: Any
) -> None:
    assert measure.of is not None
    name, function = measure.of.text, measure.function.name
    values = _OPERANDS[name][1]
    event(f"{function} of {name}")
    labels = [n for n, by in enumerate(aggregation.group_by) if isinstance(by, ByLabel)]
    for key, members in expected.items():
        if name == "prediction.score":
            # Only the predictions that have the label of the group.
            operands = [
                Decimal(repr(score))
                for inference in members
                for label, score in inference.predictions or ()
                if score is not None and all(label == key[n] for n in labels)
            ]
        else:
            within = [n for n, by in enumerate(aggregation.group_by) if _same(by, name)]
            operands = [
                value
                for inference in members
                for value in values(inference)
                if all(value == key[n] for n in within)
            ]
        value = _value(function, groups[key][measure.name])
        assert value == plain.calculate(function, operands, options), (function, name, key)


def _same(by: Any, name: str) -> bool:
    """Check whether a name of many values is both grouped by and measured."""
    if isinstance(by, ByLabel):
        return name == "label"
    return isinstance(by, ByName) and by.of.text == name


async def _measured(engine: AsyncEngine, *measures: Measure, **conditions: Any) -> Any:
    """Return the measures of the one group that holds everything."""
    async with engine.connect() as connection:
        known_registrations = list(
            (await registrations.find_by_ids(connection, ["model"])).values()
        )
        targets, _ = await build_targets(
            connection, known_registrations, QueryRequest(**conditions)
        )
        answer = await aggregate(
            connection,
            targets,
            Aggregation(measures=measures),
            deadline=Deadline.after(60),
            unknown_keys="empty",
        )
    [group] = answer.groups
    return group["measures"]


@pytest.mark.parametrize("conditions", [{}, {"until": _LATER, "ok": True}])
async def test_bins_of_timestamps_hold_every_value(
    engine: AsyncEngine, conditions: dict[str, Any]
) -> None:
    """The first and the last possible day are among them."""
    inferences = [
        NewInference(
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
    await store(engine, *inferences)
    histogram = Measure(
        function=AGGREGATES["histogram"], of=Name("t", None, ""), name="t", path="", bins=12
    )
    with_bounds = replace(histogram, name="given", bounds=(_at(2), _at(5)))
    received = replace(histogram, of=Name("received_at", None, ""), name="received_at", bins=2)
    far = replace(histogram, of=Name("far", None, ""), name="far", bins=1)
    measures = await _measured(engine, histogram, with_bounds, received, far, **conditions)
    assert measures["t"]["bins"] == [
        {"from": _at(day), "to": _at(day + 2), "count": 2 if day in {0, 24} else 4}
        for day in range(0, 26, 2)
    ]
    assert measures["given"] == {
        "bins": [{"from": _at(2), "to": _at(5), "count": 6}],
        **{"below": 2, "above": 40},
    }
    assert sum(bin_["count"] for bin_ in measures["received_at"]["bins"]) == 48
    # No bin can end after the last instant: it is above the last bin.
    [whole] = measures["far"]["bins"]
    assert (whole["count"], measures["far"]["below"], measures["far"]["above"]) == (24, 0, 24)


def _at(day: int) -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day - 1)


async def test_histogram_of_unknown_key_takes_the_kind_of_its_bounds(engine: AsyncEngine) -> None:
    await store(engine, NewInference("0", _NIGHT))
    histogram = Measure(function=AGGREGATES["histogram"], of=Name("t", None, ""), name="t", path="")
    numbers = replace(histogram, name="numbers", bounds=_BOUNDS)
    times = replace(histogram, name="times", bounds=_TIMES)
    measures = await _measured(engine, numbers, times)
    assert [bin_["count"] for bin_ in measures["numbers"]["bins"]] == [0, 0, 0]
    assert [bin_["count"] for bin_ in measures["times"]["bins"]] == [0, 0]


async def test_bins_of_numbers_hold_every_value(engine: AsyncEngine) -> None:
    inferences = [
        NewInference(str(n), _NIGHT + timedelta(hours=n), [("n", "float", str(n))])
        for n in range(50)
    ]
    await store(engine, *inferences)
    measure = Measure(
        function=AGGREGATES["histogram"], of=Name("n", None, ""), name="h", path="", bins=5
    )
    with_bounds = replace(measure, name="given", bounds=(Decimal(10), Decimal(20), Decimal(40)))
    async with engine.connect() as connection:
        known_registrations = list(
            (await registrations.find_by_ids(connection, ["model"])).values()
        )
        targets, _ = await build_targets(connection, known_registrations, QueryRequest())
        aggregation = Aggregation(measures=(measure, with_bounds))
        answer = await aggregate(connection, targets, aggregation, deadline=Deadline.after(60))
    [group] = answer.groups
    bins = group["measures"]["h"]["bins"]
    assert [(bin_["from"], bin_["to"], bin_["count"]) for bin_ in bins] == [
        (10 * n, 10 * n + 10, 10) for n in range(5)
    ]
    assert group["measures"]["given"] == {
        "bins": [{"from": 10, "to": 20, "count": 10}, {"from": 20, "to": 40, "count": 20}],
        "below": 10,
        "above": 10,
    }
