"""`make bench-query SIZE=10m`: load once, ask, and print what it came to."""

import argparse
import asyncio
from dataclasses import asdict
from typing import Any

from tests.servers.postgres import Postgres, PostgresServer

from benchmarks.results import add_results_option, deliver, describe_machine, format_bars

from .asker import Asker, asking
from .dataset import DATABASE, SIZES, count_partitions, dataset, loaded, restore
from .measure import Figures, measure_aggregates, measure_cases, measure_look_ups, measure_mix
from .questions import CASES, FILTERS
from .report import format_figures, list_bars

PARTS = ("matrix", "aggregates", "mix")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1m", help="inferences")
    parser.add_argument("--runs", type=int, default=50, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=6.0, help="most seconds a line")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument(
        "--lines", nargs="+", default=(), metavar="TEXT",
        help="ask only these of the matrix, by a part of their names, and nothing else",
    )  # fmt: skip
    parser.add_argument("--load-only", action="store_true", help="load what is not there, and end")
    add_results_option(parser, "query")
    arguments = parser.parse_args()
    if arguments.lines:
        arguments.parts = ("matrix",)
    bench = _Bench(arguments)
    loaded(SIZES[arguments.size])  # outside of any event loop
    if not arguments.load_only:
        results = asyncio.run(bench.run())
        report = format_bars(list_bars(results)), format_figures(results)
        deliver(arguments.results, results, *report)


class _Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._size = SIZES[arguments.size]
        self._runs, self._seconds = arguments.runs, arguments.seconds
        self._parts, self._lines = arguments.parts, arguments.lines
        self._results: dict[str, Any] = {}

    async def run(self) -> dict[str, Any]:
        """Every part that is asked for, by name."""
        self._results["machine"] = {"inferences": self._size, **describe_machine()}
        with dataset(self._size) as (server, dsn):
            await restore(dsn, self._size)
            await count_partitions(dsn)
            self._results["machine"] |= _describe_postgres(server)
            try:
                async with asking(dsn) as asker:
                    await self._measure_parts(asker)
            finally:
                await restore(dsn, self._size)
        return self._results

    async def _measure_parts(self, asker: Asker) -> None:
        runs, seconds = self._runs, self._seconds
        self._add("look-ups", await measure_look_ups(asker, runs=runs))
        if "matrix" in self._parts:
            self._add("matrix", await self._ask(asker, seconds))
        if "aggregates" in self._parts:
            lines = await measure_aggregates(asker, runs=runs, seconds=2 * seconds)
            self._add("aggregates", lines)
        if "mix" in self._parts:
            self._add("mix", await measure_mix(asker, 4 * runs, seconds=20 * seconds))

    async def _ask(self, asker: Asker, seconds: float) -> list[Figures]:
        cases = (*CASES, *FILTERS)
        if self._lines:
            cases = tuple(case for case in cases if any(text in case.name for text in self._lines))
        return await measure_cases(asker, cases, runs=self._runs, seconds=seconds)

    def _add(self, part: str, lines: list[Figures]) -> None:
        self._results[part] = [asdict(line) for line in lines]


def _describe_postgres(server: PostgresServer) -> dict[str, Any]:
    postgres = Postgres(server.dsn_of(DATABASE))
    return {
        "postgres": str(postgres.ask("SHOW server_version")).split()[0],
        "partitions": postgres.ask("SELECT count(*) FROM partition_span"),
        "bytes": postgres.ask("SELECT pg_database_size(current_database())"),
    }


if __name__ == "__main__":
    main()
