"""`make bench-query SIZE=10m`: load once, ask, and write down what it came to.

What is measured goes into benchmarks/query/results/SIZE.json, from which `python -m
benchmarks.query.report` writes docs/reference/benchmarks/query.md and its plot.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.postgres import Postgres, PostgresServer

from benchmarks.machine import machine

from . import matrix
from .asker import Asker, asking
from .bodies import CASES
from .dataset import DATABASE, dataset, loaded
from .disturbances import COLD_RUNS, measure_cold, measure_erased, measure_fed
from .filters import FILTERS
from .measure import Figures
from .restoration import count_partitions, restore

RESULTS = Path(__file__).with_name("results")
SIZES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
PARTS = ("matrix", "aggregates", "mix", "ingest", "erasure", "cold", "partitions", "growth")
# Of a run with many partitions, and of what the largest is compared with.
BESIDE = 1_000_000
PARTITIONS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1m", help="inferences")
    parser.add_argument("--runs", type=int, default=50, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=6.0, help="most seconds a line")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument(
        "--lines", nargs="+", default=(), metavar="TEXT",
        help="ask only these of the matrix, by a part of their names, and write nothing",
    )  # fmt: skip
    parser.add_argument("--load-only", action="store_true", help="load what is not there, and end")
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    parts = ("matrix",) if arguments.lines else tuple(arguments.parts)
    bench = _Bench(size, arguments.runs, arguments.seconds, parts, tuple(arguments.lines))
    for data_set in bench.sets:
        loaded(*data_set)
    if arguments.load_only:
        return
    results = asyncio.run(bench.run())
    if arguments.lines:
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{arguments.size}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if set(arguments.parts) == set(PARTS):
        before = {}
    path.write_text(json.dumps(before | results, indent=1) + "\n")
    print(f"written to {path}")


@dataclass(slots=True)
class _Bench:
    size: int
    runs: int
    seconds: float
    parts: tuple[str, ...]
    lines: tuple[str, ...] = ()
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def sets(self) -> list[tuple[int, int | None]]:
        """Size and partitions of each data set that its parts ask."""
        sets: list[tuple[int, int | None]] = [(self.size, None)]
        if "partitions" in self.parts:
            sets.append((self.beside, PARTITIONS))
        if "growth" in self.parts:
            sets.append((self.beside, None))
        return sets

    @property
    def beside(self) -> int:
        """The size of what the largest is compared with."""
        return min(BESIDE, self.size)

    async def run(self) -> dict[str, Any]:
        """Every part that is asked for, by name."""
        self.results["machine"] = {"inferences": self.size, **machine()}
        with dataset(self.size) as (server, dsn):
            await restore(dsn, self.size)
            await count_partitions(dsn)
            self.results["machine"] |= _postgres(server)
            try:
                await self._measure_parts(server, dsn)
            finally:
                await restore(dsn, self.size)
        if "partitions" in self.parts:
            with dataset(self.beside, partitions=PARTITIONS) as (_, dsn):
                await self._beside("partitions", dsn)
        if "growth" in self.parts and self.beside < self.size:
            with dataset(self.beside) as (_, dsn):
                await self._beside("growth", dsn)
        return self.results

    async def _measure_parts(self, server: PostgresServer, dsn: str) -> None:
        async with asking(dsn) as asker:
            self._add("look-ups", await matrix.measure_look_ups(asker, runs=self.runs))
            if "matrix" in self.parts:
                self._add("matrix", await self._measure_cases(asker, (*CASES, *FILTERS)))
            if "aggregates" in self.parts:
                lines = await matrix.measure_aggregates(
                    asker, runs=self.runs, seconds=2 * self.seconds
                )
                self._add("aggregates", lines)
            if "mix" in self.parts:
                lines, slow = await matrix.measure_mix(
                    asker, 4 * self.runs, seconds=20 * self.seconds
                )
                self._add("mix", lines)
                self.results["slow of the mix"] = slow
            if "ingest" in self.parts:
                lines, rate = await measure_fed(
                    asker, dsn, runs=self.runs, seconds=self.seconds / 2
                )
                self._add("ingest", lines)
                self.results["events a second beside"] = rate
            if "erasure" in self.parts:
                lines = await measure_erased(
                    asker, dsn, self.size, runs=self.runs, seconds=self.seconds / 2
                )
                self._add("erasure", lines)
        if "cold" in self.parts:
            lines, dropped = await measure_cold(server, dsn, runs=min(self.runs, COLD_RUNS))
            self._add("cold", lines)
            self.results["cold of the disk"] = dropped

    async def _beside(self, part: str, dsn: str) -> None:
        await count_partitions(dsn)
        async with asking(dsn) as asker:
            lines = await matrix.measure_look_ups(asker, runs=self.runs)
            lines += await matrix.measure_cases(
                asker, (*CASES, *FILTERS), runs=self.runs, seconds=self.seconds / 3, kinds=("page",)
            )
            self._add(part, lines)

    async def _measure_cases(self, asker: Asker, cases: Any) -> list[Figures]:
        if self.lines:
            cases = [case for case in cases if any(text in case.name for text in self.lines)]
        return await matrix.measure_cases(asker, cases, runs=self.runs, seconds=self.seconds)

    def _add(self, part: str, lines: list[Figures]) -> None:
        self.results[part] = [line.as_json() for line in lines]


def _postgres(server: PostgresServer) -> dict[str, Any]:
    postgres = Postgres(server.dsn_of(DATABASE))
    return {
        "postgres": str(postgres.ask("SHOW server_version")).split()[0],
        "partitions": postgres.ask("SELECT count(*) FROM partition_span"),
        "bytes": postgres.ask("SELECT pg_database_size(current_database())"),
    }


if __name__ == "__main__":
    main()
