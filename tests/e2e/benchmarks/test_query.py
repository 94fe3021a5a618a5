"""The benchmark of questions is right about what it measures: rows, answers, and its report."""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from benchmarks.query import matrix, plan, report
from benchmarks.query.asking import asking
from benchmarks.query.bodies import CASES, Case, metadata
from benchmarks.query.described import described
from benchmarks.query.feeding import feeding
from benchmarks.query.plot import plotted
from benchmarks.query.population import MODELS, RARE_LABEL, Chunk
from benchmarks.query.restoring import restored

from tests.servers.postgres import Postgres

from .loaded import Loaded

SIZE = 3_000
_Condition = tuple[str, str, Any]


def _chunks() -> list[Chunk]:
    return [chunk for each in plan.plan(SIZE) for chunk in each.chunks()]


def test_the_population_is_the_same_wherever_it_is_made() -> None:
    again = zip(_chunks(), _chunks(), strict=True)
    for one, other in again:
        for column in ("uid", "segment", "score", "tags", "received_at"):
            assert np.array_equal(getattr(one, column), getattr(other, column))


@pytest.mark.parametrize("size", [SIZE, 1_000_000, 10_000_000])
@pytest.mark.parametrize("partitions", [None, 60])
def test_spans_hold_everyone_once(size: int, partitions: int | None) -> None:
    filled = plan.plan(size, partitions=partitions)
    assert sum(each.count for each in filled) == size
    assert len(filled) >= (partitions or 2)
    for one, other in pairwise(filled):
        assert one.first + one.count == other.first
        assert one.span.hi == other.span.lo


async def test_questions_are_answered_as_the_population_says(loaded: Loaded) -> None:
    everyone = [each for chunk in _chunks() for each in described(chunk) if each.place == 0]
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
            wanted = [each for each in everyone if matches(each.metadata)]
            assert (await asker.count(metadata(condition))).rows == len(wanted), name
            newest = sorted(wanted, key=lambda each: each.received_at, reverse=True)[:50]
            page = await asker.page(metadata(condition))
            ids = [item["inference_id"] for item in page.said["items"]]
            assert ids == [f"frame-{each.number:09d}" for each in newest], name
        labelled = [
            each
            for each in everyone
            if any(p["label"] == "person" and p["score"] > 0.9 for p in each.predictions or ())
        ]
        asked = {"prediction": {"label": "person", "score": {"gt": 0.9}}}
        assert (await asker.count(asked)).rows == len(labelled) > 0
        assert (await asker.page({"prediction": {"label": RARE_LABEL}})).whole


async def test_a_run_says_what_it_measured(loaded: Loaded) -> None:
    async with asking(loaded.dsn) as asker:
        lines = await matrix.look_ups(asker, runs=3)
        asked = await matrix.asked(asker, _cases(), runs=3, seconds=1)
    found = {
        "machine": {"inferences": SIZE, "partitions": 3, "bytes": 1, "processor": "", "cores": 1}
        | {"memory GiB": 1, "postgres": "15", "python": "3", "load before": 0.1},
        "look-ups": [line.as_json() for line in lines],
        "matrix": [line.as_json() for line in asked],
    }
    found = json.loads(json.dumps(found))
    assert all(line["runs"] == 3 and line["median"] <= line["p99"] for line in found["matrix"])
    said = report.section(found)
    assert said.count("\n| ") == 1 + len(lines) + len(asked)
    assert plotted(found).count("<circle") > len(asked)


def _cases() -> list[Case]:
    return [case for case in CASES if case.name in {"equality, 2 %", "AND of four common"}]


async def test_nothing_is_left_of_what_a_run_wrote(loaded: Loaded) -> None:
    with feeding(loaded.dsn, 50) as fed:
        pass
    assert fed.rate >= 0
    count = "SELECT count(*) FROM inference"
    assert Postgres(loaded.dsn).ask(count) > SIZE
    await restored(loaded.dsn, SIZE)
    assert Postgres(loaded.dsn).ask(count) == SIZE
    assert len(MODELS) == Postgres(loaded.dsn).ask("SELECT count(*) FROM registration")
