"""The benchmark of questions is right about what it measures: rows, answers, and its report."""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from benchmarks.query import matrix, plan, report
from benchmarks.query.asker import asking
from benchmarks.query.bodies import CASES, Case, metadata
from benchmarks.query.descriptions import describe
from benchmarks.query.feeder import feeding
from benchmarks.query.plot import draw_plot
from benchmarks.query.population import MODELS, RARE_LABEL, Chunk
from benchmarks.query.restoration import restore

from tests.servers.postgres import Postgres

from .loaded import Loaded

SIZE = 3_000
_Condition = tuple[str, str, Any]


def _list_chunks() -> list[Chunk]:
    return [chunk for partition in plan.plan(SIZE) for chunk in partition.chunks()]


def test_the_population_is_the_same_wherever_it_is_made() -> None:
    again = zip(_list_chunks(), _list_chunks(), strict=True)
    for chunk, same_chunk in again:
        for column in ("uid", "segment", "score", "tags", "received_at"):
            assert np.array_equal(getattr(chunk, column), getattr(same_chunk, column))


@pytest.mark.parametrize("size", [SIZE, 1_000_000, 10_000_000])
@pytest.mark.parametrize("partitions", [None, 60])
def test_spans_hold_everyone_once(size: int, partitions: int | None) -> None:
    filled = plan.plan(size, partitions=partitions)
    assert sum(partition.count for partition in filled) == size
    assert len(filled) >= (partitions or 2)
    for earlier, later in pairwise(filled):
        assert earlier.first + earlier.count == later.first
        assert earlier.span.hi == later.span.lo


async def test_answers_agree_with_the_population(loaded: Loaded) -> None:
    everyone = [
        described
        for chunk in _list_chunks()
        for described in describe(chunk)
        if described.model_number == 0
    ]
    questions: dict[str, tuple[_Condition, Callable[[Mapping[str, Any]], bool]]] = {
        "organization": (("organization", "eq", "port"), lambda m: m["organization"] == "port"),
        "exposure": (("exposure", "gte", 0.75), lambda m: m["exposure"] >= 0.75),
        "angle": (
            ("camera_position.angle", "neq", 90),
            lambda m: m["camera_position"]["angle"] != 90,
        ),
        "tags": (("tags[]", "eq", "tag-01"), lambda m: "tag-01" in m.get("tags", ())),
        "note": (("note", "missing", None), lambda m: "note" not in m),
        "night": (("night", "eq", True), lambda m: m["night"]),
        "segment": (("segment", "like", "street-00%"), lambda m: m["segment"] < "street-01"),
    }
    async with asking(loaded.dsn) as asker:
        for name, (condition, matches) in questions.items():
            expected = [described for described in everyone if matches(described.metadata)]
            assert (await asker.count(metadata(condition))).rows == len(expected), name
            newest = sorted(expected, key=lambda described: described.received_at, reverse=True)[
                :50
            ]
            page = await asker.page(metadata(condition))
            ids = [item["inference_id"] for item in page.body["items"]]
            assert ids == [f"frame-{described.number:09d}" for described in newest], name
        labelled = [
            described
            for described in everyone
            if any(p["label"] == "person" and p["score"] > 0.9 for p in described.predictions or ())
        ]
        body = {"prediction": {"label": "person", "score": {"gt": 0.9}}}
        assert (await asker.count(body)).rows == len(labelled) > 0
        assert (await asker.page({"prediction": {"label": RARE_LABEL}})).whole


async def test_reports_what_a_run_measured(loaded: Loaded) -> None:
    async with asking(loaded.dsn) as asker:
        lines = await matrix.measure_look_ups(asker, runs=3)
        measured = await matrix.measure_cases(asker, _list_cases(), runs=3, seconds=1)
    results = {
        "machine": {"inferences": SIZE, "partitions": 3, "bytes": 1, "processor": "", "cores": 1}
        | {"memory GiB": 1, "postgres": "15", "python": "3", "load before": 0.1},
        "look-ups": [line.as_json() for line in lines],
        "matrix": [line.as_json() for line in measured],
    }
    results = json.loads(json.dumps(results))
    assert all(line["runs"] == 3 and line["median"] <= line["p99"] for line in results["matrix"])
    section = report.format_section(results)
    assert section.count("\n| ") == 1 + len(lines) + len(measured)
    assert draw_plot(results).count("<circle") > len(measured)


def _list_cases() -> list[Case]:
    return [case for case in CASES if case.name in {"equality, 2 %", "AND of four common"}]


async def test_nothing_is_left_of_what_a_run_wrote(loaded: Loaded) -> None:
    with feeding(loaded.dsn, 50) as fed:
        pass
    assert fed.rate >= 0
    count = "SELECT count(*) FROM inference"
    assert Postgres(loaded.dsn).ask(count) > SIZE
    await restore(loaded.dsn, SIZE)
    assert Postgres(loaded.dsn).ask(count) == SIZE
    assert len(MODELS) == Postgres(loaded.dsn).ask("SELECT count(*) FROM registration")
