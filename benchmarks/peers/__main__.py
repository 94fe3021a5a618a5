"""`make bench-peers`: the same questions over the same inferences, to us and to others, in one run.

Plain JSONB with a GIN index is asked beside us at a million, MLflow at a hundred thousand. What is
measured goes into benchmarks/peers/results.json, from which `python -m benchmarks.peers.report`
writes docs/reference/benchmarks/peers.md.
"""

import argparse
import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from tests.servers.postgres import Postgres

from benchmarks.machine import machine
from benchmarks.query.asker import Asker, asking
from benchmarks.query.dataset import dataset, loaded
from benchmarks.query.population import MODELS
from benchmarks.query.restoration import restore

from . import jsonb, traces, tracking
from .comparison import Peer, compare
from .databases import fill_database
from .questions import QUESTIONS

RESULTS = Path(__file__).with_name("results.json")
# Loading a peer writes once, and the log is not to take the disk.
_SETTINGS = {"max_wal_size": "1GB"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jsonb", type=int, default=1_000_000, help="inferences beside JSONB")
    parser.add_argument("--mlflow", type=int, default=100_000, help="inferences beside MLflow")
    parser.add_argument("--runs", type=int, default=50, help="warm runs of each line")
    parser.add_argument("--seconds", type=float, default=240.0, help="most seconds a line")
    arguments = parser.parse_args()
    for size in (arguments.jsonb, arguments.mlflow):
        loaded(size)
    results = asyncio.run(_Bench(arguments.runs, arguments.seconds).run(arguments))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {RESULTS}")


class _Bench:
    def __init__(self, runs: int, seconds: float) -> None:
        self._runs, self._seconds = runs, seconds

    async def run(self, sizes: argparse.Namespace) -> dict[str, Any]:
        results: dict[str, Any] = {"machine": {"inferences": sizes.jsonb, **machine()}}
        with dataset(sizes.jsonb, settings=_SETTINGS) as (server, dsn):
            results["machine"]["postgres"] = str(server.ask("SHOW server_version")).split()[0]
            results["jsonb"] = await self._beside_jsonb(server, dsn, sizes.jsonb)
        with dataset(sizes.mlflow, settings=_SETTINGS) as (server, dsn):
            results["mlflow"] = await self._beside_mlflow(server, dsn, sizes.mlflow)
        return results

    async def _beside_jsonb(self, server: Postgres, dsn: str, size: int) -> dict[str, Any]:
        await restore(dsn, size)
        fill = partial(jsonb.load, size=size)
        theirs = await fill_database(server, jsonb.DATABASE, f"{size} documents", fill)
        async with asking(dsn) as asker, jsonb.connect(theirs) as peer:
            lines = await self._measure_lines(asker, peer, ("page", "count"))
        return _measure_sizes(size, dsn, theirs) | {"lines": lines}

    async def _beside_mlflow(self, server: Postgres, dsn: str, size: int) -> dict[str, Any]:
        await restore(dsn, size)
        version = tracking.version()
        fill = partial(_load_traces, size=size)
        theirs = await fill_database(
            server, tracking.DATABASE, f"{size} traces, MLflow {version}", fill
        )
        async with asking(dsn) as asker, tracking.tracking(theirs) as peer:
            lines = await self._measure_lines(asker, peer, ("page",), says_all=False)
        return _measure_sizes(size, dsn, theirs) | {"version": version, "lines": lines}

    async def _measure_lines(
        self, asker: Asker, peer: Peer, kinds: tuple[str, ...], *, says_all: bool = True
    ) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for question in QUESTIONS:
            for kind in kinds:
                line: dict[str, Any] = {"question": question.name, "kind": kind}
                if question.cannot is None or says_all:
                    line |= await compare(
                        question, asker, peer, kind=kind, runs=self._runs, seconds=self._seconds
                    )
                else:
                    line["cannot"] = question.cannot
                lines.append(line)
        return lines


async def _load_traces(dsn: str, size: int) -> None:
    async with tracking.tracking(dsn) as client:
        experiments = await client.experiments(*MODELS)
        await traces.load(dsn, size, experiments, client.write)


def _measure_sizes(size: int, ours: str, theirs: str) -> dict[str, Any]:
    """Return how much there is, and the bytes that it takes of the disk."""
    size_query = "SELECT pg_database_size(current_database())"
    return {
        "inferences": size,
        "bytes": Postgres(ours).ask(size_query),
        "bytes of the peer": Postgres(theirs).ask(size_query),
    }


if __name__ == "__main__":
    main()
