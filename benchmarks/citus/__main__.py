"""`make bench-citus`: one plain Postgres and a Citus of three nodes, in turn, on one machine.

What is measured goes into benchmarks/citus/results.json, from which
`python -m benchmarks.citus.report` writes docs/reference/benchmarks/citus.md.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.servers.fixtures import unique

from benchmarks.ingest.events import make_events
from benchmarks.ingest.stage import fill
from benchmarks.machine import machine
from benchmarks.query import matrix
from benchmarks.query.__main__ import SIZES
from benchmarks.query.asker import Answer, Asker, asking
from benchmarks.query.bodies import CASES, Body, metadata
from benchmarks.query.dataset import dataset
from benchmarks.query.measure import Figures, measure
from benchmarks.query.restoration import count_partitions, restore

from .nodes import SHARDS, three_nodes

RESULTS = Path(__file__).with_name("results.json")
# Of every model: its shards lie on both workers.
ACROSS: dict[str, tuple[str, Body]] = {
    "page across models": ("query", {"limit": 50, "ok": False}),
    "count across models": ("count", metadata(("night", "eq", True))),
    "groups across models": ("aggregate", {"group_by": [{"label": True}]}),
}
EVENTS = 20_000
Lines = list[list[Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """Load what is not there, measure both, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1m", help="inferences")
    parser.add_argument("--runs", type=int, default=30, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=2.0, help="most seconds a line and side")
    parser.add_argument("--events", type=int, default=EVENTS, help="that are written")
    parser.add_argument("--load-only", action="store_true", help="load what is not there, and end")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write to")
    arguments = parser.parse_args(argv)
    size = SIZES[arguments.size]
    with three_nodes(size) as (citus, distributing), dataset(size) as (_, plain):
        if arguments.load_only:
            return
        results = {"machine": machine(), "inferences": size, "shards": SHARDS}
        results |= {"distributing": distributing}
        results |= asyncio.run(_measure((plain, citus), size, arguments))
    arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.results}")


async def _measure(dsns: Sequence[str], size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    for dsn in dsns:
        await restore(dsn, size)
        await count_partitions(dsn)
    async with AsyncExitStack() as stack:
        askers = [await stack.enter_async_context(asking(dsn)) for dsn in dsns]
        lines = await _measure_lines(askers, arguments.runs, arguments.seconds)
    written = [await _measure_writing(dsn, arguments.events) for dsn in dsns]
    for dsn in dsns:
        await restore(dsn, size)
    return {"lines": lines, "written": written}


async def _measure_lines(askers: Sequence[Asker], runs: int, seconds: float) -> Lines:
    """Every question of both, one after the other: what slows one down slows the other too."""
    lines: Lines = [await _measure_both(askers, matrix.measure_look_ups, runs=runs)]
    for case in CASES:
        lines.append(
            await _measure_both(askers, matrix.measure_cases, [case], runs=runs, seconds=seconds)
        )
    lines.append(
        await _measure_both(askers, matrix.measure_aggregates, runs=runs, seconds=2 * seconds)
    )
    lines.append(await _measure_both(askers, _measure_across, runs=runs, seconds=2 * seconds))
    return [list(pair) for some in lines for pair in zip(*some, strict=True)]


async def _measure_both(askers: Sequence[Asker], ask: Any, *more: Any, **how: Any) -> Lines:
    return [[line.as_json() for line in await ask(asker, *more, **how)] for asker in askers]


async def _measure_across(asker: Asker, *, runs: int, seconds: float) -> list[Figures]:
    figures = []
    for name, (what, body) in ACROSS.items():

        async def ask(_: int, what: str = what, body: Body = body) -> Answer:
            began = time.perf_counter()
            answer = await asker.http.post(f"/v1/inferences/{what}", json=body)
            answer.raise_for_status()
            return Answer(time.perf_counter() - began, answer.json().get("count", 0))

        figures.append(await measure(name, "across", ask, runs=runs, warming=1, seconds=seconds))
    return figures


async def _measure_writing(dsn: str, count: int) -> float:
    """Return how many inferences a second one process writes, without Kafka."""
    events = list(make_events(0, count))
    began = time.perf_counter()
    await fill(dsn, events, model_id=unique("bench"), keys=False)
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
