"""`make bench-erasure`: real Postgres, MinIO and retention; erase, compare, write down.

What is measured goes into benchmarks/erasure/results.json, from which
`python -m benchmarks.erasure.report` writes docs/reference/benchmarks/erasure.md.
"""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.servers.fixtures import migrate
from tests.servers.memory import memory_folder
from tests.servers.minio import MinioServer
from tests.servers.server import SHARED_TEMPORARY

from benchmarks.machine import machine

from .bench import PARTS, Bench, Sizes
from .dataset import dataset, dsn_of

RESULTS = Path(__file__).with_name("results.json")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="inferences without objects")
    parser.add_argument(
        "--inferences", type=int, default=100_000, help="inferences of three objects each"
    )
    parser.add_argument("--rounds", type=int, default=3, help="alternations; medians are reported")
    parser.add_argument("--row-sample", type=int, default=50_000, help="inferences of a round")
    parser.add_argument("--sample", type=int, default=3_000, help="the same with objects")
    parser.add_argument("--events", type=int, default=200, help="a second that come in beside")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of retention")
    parser.add_argument("--in-memory", action="store_true", help="MinIO's data, not on the disk")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write to")
    arguments = parser.parse_args(argv)
    described = machine()
    sizes = Sizes(
        arguments.rows, arguments.inferences, arguments.rounds,
        arguments.row_sample, arguments.sample, arguments.events,
    )  # fmt: skip
    settings = dict(setting.split("=", 1) for setting in arguments.set)
    results = measure(sizes, arguments.parts, settings, in_memory=arguments.in_memory)
    before: dict[str, Any] = {}
    if set(arguments.parts) != set(PARTS) and arguments.results.exists():
        before = json.loads(arguments.results.read_text())
    run: dict[str, Any] = {"machine": described, "sizes": sizes.as_json(), "settings": settings}
    run |= {"in_memory": arguments.in_memory, "listed_ahead": True}
    results["runs"] = before.get("runs", {}) | dict.fromkeys(arguments.parts, run)
    arguments.results.write_text(json.dumps(before | results, indent=1) + "\n")
    print(f"written to {arguments.results}")


def measure(
    sizes: Sizes, parts: Sequence[str], settings: dict[str, str], *, in_memory: bool = False
) -> dict[str, Any]:
    """All parts, on servers of their own."""
    with (
        dataset(sizes.rows) as postgres,
        MinioServer(memory_folder() if in_memory else SHARED_TEMPORARY) as minio,
        tempfile.TemporaryDirectory() as folder,
    ):
        migrate(dsn_of(postgres))
        bench = Bench(sizes, postgres, minio, Path(folder), settings)
        return asyncio.run(bench.run(parts))


if __name__ == "__main__":
    main()
