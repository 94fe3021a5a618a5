"""`make bench-citus`: one plain Postgres and a Citus of three nodes, in turn, on one machine.

The population on a coordinator and two workers is kept: a folder, and a port, for each node. It is
loaded as on one node and then distributed, as an installation that grows does it.
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.servers.citus import NODE, WORKERS, find_citus, join
from tests.servers.fixtures import migrate, unique
from tests.servers.postgres import Postgres, find_postgres

from benchmarks.events import fill, make_events
from benchmarks.query.asker import Answer, Asker, asking
from benchmarks.query.dataset import (
    DATABASE,
    SETTINGS,
    SIZES,
    KeptPostgres,
    cache,
    count_partitions,
    dataset,
    loaded,
    restore,
)
from benchmarks.query.measure import (
    Figures,
    measure,
    measure_aggregates,
    measure_cases,
    measure_look_ups,
)
from benchmarks.query.questions import CASES, Body, metadata
from inference_store.index.distribution import DISTRIBUTED, REFERENCE, distribute

from .results import add_results_option, deliver, describe_machine, format_ms, format_table

SHARDS = 32
# Of every model: its shards lie on both workers.
_ACROSS: dict[str, tuple[str, Body]] = {
    "page across models": ("query", {"limit": 50, "ok": False}),
    "count across models": ("count", metadata(("night", "eq", True))),
    "groups across models": ("aggregate", {"group_by": [{"label": True}]}),
}
_DONE = "seconds"
_LOADING = {"autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
_LEAVES = "SELECT array_agg(relid::text) FROM pg_partition_tree('{}') WHERE isleaf"
Lines = list[list[Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """Load what is not there, measure both, and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1m", help="inferences")
    parser.add_argument("--runs", type=int, default=30, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=2.0, help="most seconds a line and side")
    parser.add_argument("--events", type=int, default=20_000, help="that are written")
    parser.add_argument("--load-only", action="store_true", help="load what is not there, and end")
    add_results_option(parser, "citus")
    arguments = parser.parse_args(argv)
    size = SIZES[arguments.size]
    with _three_nodes(size) as (citus, distributing), dataset(size) as (_, plain):
        if arguments.load_only:
            return
        results = {"machine": describe_machine(), "inferences": size, "distributing": distributing}
        results |= asyncio.run(_measure((plain, citus), size, arguments))
    deliver(arguments.results, results, _format_figures(results))


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
    lines: Lines = [await _measure_both(askers, measure_look_ups, runs=runs)]
    for case in CASES:
        lines.append(await _measure_both(askers, measure_cases, [case], runs=runs, seconds=seconds))
    for ask in (measure_aggregates, _measure_across):
        lines.append(await _measure_both(askers, ask, runs=runs, seconds=2 * seconds))
    return [list(pair) for some in lines for pair in zip(*some, strict=True)]


async def _measure_both(askers: Sequence[Asker], ask: Any, *more: Any, **how: Any) -> Lines:
    return [[asdict(line) for line in await ask(asker, *more, **how)] for asker in askers]


async def _measure_across(asker: Asker, *, runs: int, seconds: float) -> list[Figures]:
    figures = []
    for name, (what, body) in _ACROSS.items():

        async def ask(_: int, what: str = what, body: Body = body) -> Answer:
            began = time.perf_counter()
            answer = await asker.http.post(f"/v1/inferences/{what}", json=body)
            answer.raise_for_status()
            return Answer(time.perf_counter() - began, answer.json().get("count", 0))

        figures.append(await measure(name, "across", ask, runs=runs, warming=1, seconds=seconds))
    return figures


async def _measure_writing(dsn: str, count: int) -> float:
    events = list(make_events(0, count))
    began = time.perf_counter()
    await fill(dsn, events, model_ids=[unique("bench")], keys=False)
    return count / (time.perf_counter() - began)


def _format_figures(results: Mapping[str, Any]) -> str:
    pairs = [
        (single["name"], single["kind"], single["median"], cluster["median"])
        for single, cluster in results["lines"]
    ]
    pairs.append(("written, inferences/s", "", *results["written"]))
    rows = (
        (*names, format_ms(single), format_ms(cluster), f"{cluster / single:.2f}")
        for *names, single, cluster in pairs
    )
    about = (
        f"{results['inferences']:,} inferences, {SHARDS} shards."
        f" `distribute` took {results['distributing']:.0f} s."
    )
    head = "question | | one node, median ms | three nodes, median ms | times"
    return f"{about}\n\n{format_table(head, rows)}"


class _KeptNode(KeptPostgres):
    """It has the same port at each start: the nodes know each other by it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {**SETTINGS, **NODE, **settings})
        port = folder / "port"
        if port.exists():
            self.port = int(port.read_text())
            self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        port.write_text(str(self.port))


@contextmanager
def _three_nodes(size: int) -> Iterator[tuple[str, float]]:
    folder = _make_distributed(size)
    with _start_nodes(folder, {}) as nodes:
        yield nodes[0].dsn_of(DATABASE), float((folder / _DONE).read_text())


@contextmanager
def _start_nodes(folder: Path, settings: Mapping[str, str]) -> Iterator[list[_KeptNode]]:
    with ExitStack() as stack:
        folders = [folder / str(number) for number in range(1 + WORKERS)]
        yield [stack.enter_context(_KeptNode(node_folder, settings)) for node_folder in folders]


def _make_distributed(size: int) -> Path:
    if find_citus() != find_postgres():
        sys.exit("Citus is not installed beside the Postgres that the benchmarks use")
    before = loaded(size)
    folder = cache() / f"citus-{before.name}"
    if (folder / _DONE).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    coordinator = _KeptNode(folder / "0", {})
    shutil.copytree(before / "data", coordinator.data)
    coordinator.give_folder(coordinator.data)
    with _start_nodes(folder, _LOADING) as nodes:
        coordinator, *workers = nodes
        dsns = [
            coordinator.dsn_of(DATABASE),
            *(node.create_database(DATABASE) for node in workers),
        ]
        seconds = _distribute(dsns)
        for node in nodes:
            node.execute("CHECKPOINT")
    (folder / _DONE).write_text(str(seconds))
    return folder


def _distribute(dsns: list[str]) -> float:
    """Move the rows to their shards; the seconds of `distribute` alone."""
    migrate(dsns[0])
    join(dsns)
    began = time.perf_counter()
    asyncio.run(distribute(dsns[0], shards=SHARDS, say=lambda said: print(said, flush=True)))
    seconds = time.perf_counter() - began
    database = Postgres(dsns[0])
    for table in (*DISTRIBUTED, *REFERENCE):
        database.execute(f"SELECT truncate_local_data_after_distributing_table('{table.name}')")
    for table in DISTRIBUTED:
        leaves = database.ask(_LEAVES.format(table.name)) or [table.name]
        database.execute(*(f"VACUUM (ANALYZE) {leaf}" for leaf in leaves))
    return seconds


if __name__ == "__main__":
    main()
