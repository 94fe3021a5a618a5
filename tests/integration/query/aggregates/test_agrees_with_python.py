"""Aggregates in SQL agree with a plain loop over the inferences."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.tables import erasing, partition_count
from inference_store.inference.events.event import Extras
from inference_store.query.aggregates import (
    AGGREGATES,
    Aggregation,
    GroupBody,
    MeasureBody,
    aggregate,
)
from inference_store.query.counting import count_ended
from inference_store.query.deadline import Deadline
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.preparation import QueryRequest
from inference_store.query.properties import OPERATORS
from tests.integration.query.conftest import Filled, fill
from tests.integration.stored_inferences import NewInference, store
from tests.properties import examples
from tests.servers.postgres import Postgres

from . import plain
from .targets import build_targets

# The night in which Europe's clocks go back: 01:00 UTC is 02:00 in Berlin for the second time.
_NIGHT = datetime(2026, 10, 24, 21, 30, tzinfo=UTC)
_MORNING = _NIGHT + timedelta(hours=5)
_LATER = datetime(2100, 1, 1, tzinfo=UTC)
_LONG, _NOON = "é" * 400, timedelta(hours=12)
_NUMBERS = ("0.1", "0.2", "-3", "12345678901234567890.5", "7", "7.0", "1e30")
_ITEMS = {
    "n": ("float", _NUMBERS),
    "s": ("string", ("a", "ab", "B", "", _LONG, _LONG + "x")),
    "b": ("bool", ("true", "false")),
    "t": ("timestamp", ("2026-11-01", "2026-11-02T00:00:01Z")),
    "tags": ("json", ('["x", "y", "x"]', '["y"]', "[]")),
    "marks": ("json", ("[0.1, 0.25, 7]", "[-5, 0.2]")),
}
_LABELS, _SCORES = ("person", "car", None), (0.1, 0.30000000000000004, 0.3, 0.5, None)
_MODELS, _ROWS = 12, 16


def _make_instant(random: Random) -> datetime:
    quarters, micros = random.randint(0, 40), random.choice([-1, 0, 1])
    return _NIGHT + timedelta(minutes=15 * quarters, microseconds=micros)


def _make_inferences(model_id: str) -> list[NewInference]:
    random = Random(model_id)
    return [
        NewInference(
            str(n),
            _make_instant(random),
            [
                (name, kind, random.choice(values))
                for name, (kind, values) in _ITEMS.items()
                if random.random() < 0.6
            ],
            None
            if random.random() < 0.3
            else [
                (random.choice(_LABELS), random.choice(_SCORES))
                for _ in range(random.randint(0, 3))
            ],
            extras=Extras(ok=random.choice([True, False, None])),
            model_id=model_id,
            flags=("capture_request_over_cap",) if n % 3 == 0 else (),
        )
        for n in range(_ROWS)
    ]


_BOUNDS = (Decimal("-3"), Decimal("0.2"), Decimal("0.3"), Decimal(7))
_TIMES = (_NIGHT, _NIGHT + timedelta(hours=2), datetime(2026, 11, 2, 0, 0, 1, tzinfo=UTC))


_FAMILIES = {
    **{"n": "number", "s": "string", "b": "bool", "t": "timestamp", "tags[]": "string"},
    "marks[]": "number",
    **{"ok": "bool", "request_problem": "string", "received_at": "timestamp"},
    **{"prediction_count": "number", "top_score": "number", "top_label": "string"},
}
_OPERANDS: dict[str, tuple[str, plain.Values]] = {
    **{name: (family, plain.read_values(name, family)) for name, family in _FAMILIES.items()},
    "label": ("string", plain.read_labels),
    "prediction.score": ("number", plain.read_scores),
}
_SPANS = st.sampled_from(["minute", "hour", "day", "week", "month", "PT15M", "PT6H", "P2D"])
_ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu"])


def _group(**members: Any) -> GroupBody:
    return GroupBody.model_validate(members)


def _grouping(data: st.DataObject, position: int) -> tuple[Any, plain.Values]:
    name = f"g{position}"
    kind = data.draw(st.sampled_from(["name", "label", "time", "histogram"]))
    if kind == "label":
        return _group(label=True, called=name), plain.read_labels
    if kind == "time":
        unit, zone = data.draw(_SPANS), data.draw(_ZONES)
        return _group(time=unit, zone=zone, called=name), plain.find_span_start(unit, zone)
    if kind == "histogram":
        numbers = ["n", "marks[]", "top_score", "prediction_count"]
        of = data.draw(st.sampled_from([*numbers, "t", "received_at"]))
        bounds: Any = _TIMES if _OPERANDS[of][0] == "timestamp" else _BOUNDS
        by = _group(histogram={"of": of, "bounds": bounds}, called=name)
        return by, plain.find_bins(_OPERANDS[of][1], bounds)
    names = ["n", "s", "b", "tags[]", "marks[]", "ok", "top_label", "top_score", "request_problem"]
    of = data.draw(st.sampled_from(names))
    return _group(of=of, called=name), _OPERANDS[of][1]


def _measure(data: st.DataObject, position: int) -> tuple[MeasureBody, dict[str, Any]]:
    function = AGGREGATES[data.draw(st.sampled_from(sorted(set(AGGREGATES) - {"histogram"})))]
    fitting = [name for name, (kind, _) in _OPERANDS.items() if kind in function.kinds]
    of = data.draw(st.sampled_from(fitting))
    options: dict[str, Any] = {}
    if "at" in function.options:
        options["at"] = (Decimal(0), Decimal("33.3"), Decimal(50), Decimal(100))
    if "limit" in function.options:
        options["limit"] = data.draw(st.integers(1, 3))
    if "prefix" in function.options and _OPERANDS[of][0] == "string":
        options["prefix"] = data.draw(st.sampled_from(["", "a", "p", "éé"]))
    if "is" in function.options:
        options["expected"] = data.draw(st.booleans())
    named = {"function": function.name, "of": of, "called": f"m{position}"}
    return MeasureBody.model_validate(named | options), options


def _is_person(inference: NewInference) -> bool:
    return "person" in plain.read_labels(inference)


def _is_positive(inference: NewInference) -> bool:
    return any(value >= 0 for value in _OPERANDS["n"][1](inference))


_POSITIVE = [MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 0)]
_QUESTIONS = (
    (QueryRequest(), lambda _: True),
    (QueryRequest(metadata=_POSITIVE, unknown_keys="empty"), _is_positive),
    # Two indexes could lead: one is chosen.
    (
        QueryRequest(metadata=_POSITIVE, predicted=True, labels=["person"], unknown_keys="empty"),
        lambda inference: _is_person(inference) and _is_positive(inference),
    ),
    (QueryRequest(predicted=True, labels=["person"]), _is_person),
    (QueryRequest(ok=True), lambda inference: inference.extras.ok is True),
    (QueryRequest(since=_MORNING), lambda inference: inference.received_at >= _MORNING),
)


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


@pytest.fixture(scope="module")
def rows(postgres_server: Postgres, migrated_template: str) -> Iterator[Filled]:
    """Fill models; of every second one, half of the inferences come after they were counted."""
    models = [_make_inferences(f"model-{n}") for n in range(_MODELS)]

    async def count_and_complete(dsn: str) -> None:
        engine = create_engine(dsn)
        await count_ended(engine, seconds=300, before=_LATER)
        for inferences in models[1::2]:
            await store(engine, *inferences)
        await engine.dispose()

    early = (some[: _ROWS // 2] if n % 2 else some for n, some in enumerate(models))
    for filled in fill(postgres_server, migrated_template, *early):
        asyncio.run(count_and_complete(filled.dsn))
        yield replace(filled, inferences={some[0].model_id: some for some in models})


@pytest.fixture
async def rows_connection(rows: Filled) -> AsyncIterator[AsyncConnection]:
    engine = create_engine(rows.dsn)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


@pytest.mark.long
@settings(
    max_examples=examples(300),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
@given(data=st.data(), counted=st.booleans(), across=st.booleans(), marks=st.booleans())
async def test_sql_agrees_with_python(
    rows: Filled,
    rows_connection: AsyncConnection,
    data: st.DataObject,
    counted: bool,
    across: bool,
    marks: bool,
) -> None:
    """Of one model or two; the others must not appear in any answer."""
    few = 2 if across else 1
    ids = data.draw(
        st.lists(st.sampled_from([*rows.models]), min_size=few, max_size=few, unique=True)
    )
    marked = rows.inferences[ids[0]][:1] if marks else []
    visible = [one for model_id in ids for one in rows.inferences[model_id] if one not in marked]
    async with rows_connection.begin_nested() as savepoint:
        if not counted:
            await rows_connection.execute(update(partition_count).values(counted_at=None))
        for inference in marked:
            mark = {"model": rows.models[ids[0]], "uid": inference.uid, "scope": "inference"}
            await rows_connection.execute(erasing.insert().values(erasure=uuid.uuid4(), **mark))
        known_registrations = await registrations.find_by_ids(rows_connection, ids)
        for _ in range(4):
            await _check_question(
                rows_connection, list(known_registrations.values()), visible, data
            )
        await savepoint.rollback()


async def _check_question(
    connection: AsyncConnection,
    known_registrations: Sequence[registrations.Registration],
    visible: Sequence[NewInference],
    data: st.DataObject,
) -> None:
    question, holds = data.draw(st.sampled_from(_QUESTIONS))
    groupings = [_grouping(data, n) for n in range(data.draw(st.sampled_from([0, 1, 1, 2, 3])))]
    # A count alone may be read from an index.
    measures = [_measure(data, n) for n in range(data.draw(st.sampled_from([0, 2, 2])))]
    all_of = MeasureBody.model_validate({"function": "count", "called": "all"})
    aggregation = Aggregation(
        measures=[all_of, *(measure for measure, _ in measures)],
        group_by=[by for by, _ in groupings],
        limit=10_000,
    )
    targets = await build_targets(connection, known_registrations, question)
    answer = await aggregate(
        connection, *targets, aggregation, deadline=Deadline.after(300), unknown_keys="empty"
    )
    matching = [inference for inference in visible if holds(inference)]
    expected = plain.group_inferences(matching, [values for _, values in groupings])
    groups = {_key(group.key): group.measures for group in answer.groups}
    assert len(groups) == len(answer.groups)
    # A group of nothing but predictions without a label is left out; the one group of what
    # is not grouped is always there, empty or not.
    counts = {key: group["all"] for key, group in groups.items() if group["all"] or not key}
    assert counts == {key: len(members) for key, members in expected.items()}
    _check_without_inferences(groups, groupings, measures)
    for measure, options in measures:
        members = expected
        if measure.of is not None and measure.of.name == "prediction.score":
            members = _group_by_all_but_labels(matching, groupings, expected)
        _check(measure, options, aggregation, groups, members)


def _check_without_inferences(groups: Any, groupings: Any, measures: Any) -> None:
    """Check that only predictions without a label, measured by label, make such groups."""
    empty = [key for key, group in groups.items() if key and not group["all"]]
    places = [position for position, (by, _) in enumerate(groupings) if by.is_label]
    for key in empty:
        assert any(key[position] is None for position in places)
        assert any(m.of is not None and m.of.name == "prediction.score" for m, _ in measures)


def _group_by_all_but_labels(
    matching: list[NewInference], groupings: Any, keys: Any
) -> dict[Any, list[NewInference]]:
    """Group without the labels: the label of a prediction says in which group it is measured."""
    others = [
        (position, values) for position, (by, values) in enumerate(groupings) if not by.is_label
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
    measure: MeasureBody,
    options: dict[str, Any],
    aggregation: Aggregation,
    groups: Any,
    expected: Any,
) -> None:
    assert measure.of is not None
    name, function = measure.of.name, measure.function
    values = _OPERANDS[name][1]
    event(f"{function} of {name}")
    labels = [n for n, by in enumerate(aggregation.group_by) if by.is_label]
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
            operands = [value for inference in members for value in values(inference)]
        value = _value(function, groups[key][measure.name])
        assert value == plain.calculate(function, operands, options), (function, name, key)


async def _measured(engine: AsyncEngine, *measures: MeasureBody, **conditions: Any) -> Any:
    options: dict[str, Any] = {"deadline": Deadline.after(300), "unknown_keys": "empty"}
    async with engine.connect() as connection:
        known = (await registrations.find_by_ids(connection, ["model"])).values()
        targets = await build_targets(connection, list(known), QueryRequest(**conditions))
        aggregation = Aggregation(measures=list(measures))
        answer = await aggregate(connection, *targets, aggregation, **options)
    [group] = answer.groups
    return group.measures


def _at(day: int) -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + timedelta(days=day - 1)


def _histogram(of: str, **options: Any) -> MeasureBody:
    named = {"function": "histogram", "of": of, "called": of}
    return MeasureBody.model_validate(named | options)


async def test_bins_hold_every_value(engine: AsyncEngine) -> None:
    """The first and the last possible day are among them."""
    inferences = [
        NewInference(
            str(n),
            _NIGHT + timedelta(hours=n),
            [
                ("t", "timestamp", f"2026-11-{1 + n // 2:02d}T12:00:00Z"),
                ("far", "timestamp", "0001-01-01" if n % 2 else "9999-12-31T23:59:59.999999Z"),
                ("n", "float", str(n)),
            ],
            extras=Extras(ok=True),
        )
        for n in range(50)
    ]
    await store(engine, *inferences)
    some = (
        _histogram("t", bins=13),
        _histogram("t", called="given", bounds=(_at(2), _at(5))),
        _histogram("received_at", bins=2),
        _histogram("far", bins=1),
        _histogram("n", bins=5),
        _histogram("n", called="bounds", bounds=(Decimal(10), Decimal(20), Decimal(40))),
    )
    for conditions in ({}, {"until": _LATER, "ok": True}):
        measures = await _measured(engine, *some, **conditions)
        counts = [bin_["count"] for bin_ in measures["t"]["bins"]]
        assert (sum(counts), len(counts)) == (50, 13)
        for bin_ in measures["t"]["bins"]:
            days = [day for day in range(1, 26) if bin_["from"] <= _at(day) + _NOON < bin_["to"]]
            assert bin_["count"] == 2 * len(days), bin_
        assert measures["given"] == {
            "bins": [{"from": _at(2), "to": _at(5), "count": 6}],
            **{"below": 2, "above": 42},
        }
        assert sum(bin_["count"] for bin_ in measures["received_at"]["bins"]) == 50
        # No bin can end after the last instant: it is above the last bin.
        [whole] = measures["far"]["bins"]
        assert (whole["count"], measures["far"]["below"], measures["far"]["above"]) == (25, 0, 25)
        assert [(bin_["from"], bin_["to"], bin_["count"]) for bin_ in measures["n"]["bins"]] == [
            (10 * n, 10 * n + 10, 10) for n in range(5)
        ]
        assert measures["bounds"] == {
            "bins": [{"from": 10, "to": 20, "count": 10}, {"from": 20, "to": 40, "count": 20}],
            "below": 10,
            "above": 10,
        }
    # The histogram of an unknown key takes the kind of its bounds.
    unknown = (
        _histogram("nothing", called="numbers", bounds=_BOUNDS),
        _histogram("nothing", called="times", bounds=_TIMES),
    )
    measures = await _measured(engine, *unknown)
    assert [bin_["count"] for bin_ in measures["numbers"]["bins"]] == [0, 0, 0]
    assert [bin_["count"] for bin_ in measures["times"]["bins"]] == [0, 0]
