"""`make bench-export SIZE=100k`: all inferences of a model as a stream, in each format.

CPU is that of the api and of Postgres together, for each inference. Beside each stream another
caller asks for pages of 50, one after the other; just before it asks alone.
"""

import argparse
import time
from dataclasses import dataclass

import httpx
import psutil

from benchmarks.machine import machine
from benchmarks.query.__main__ import SIZES
from inference_store.api.http import NDJSON
from inference_store.export.formats import FORMATS

from .neighbour import ask_beside
from .stage import MODEL, Served, serve

_BODY = {"include": ["metadata", "predictions"]}
_CODINGS = ("identity", "zstd")
_QUERY = f"/v1/models/{MODEL}/inferences/query"
_ALONE_SECONDS = 4.0
_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stream took, for each inference: microseconds of CPU, bytes; and altogether."""

    api: float
    postgres: float
    bytes: float
    seconds: float
    grown_mib: float
    """By how much the api's memory was larger during the stream than before it, at most."""


def measure_stream(served: Served, media_type: str, coding: str) -> Cost:
    """Read a whole stream."""
    process = psutil.Process(served.pid)
    headers = {"Accept": media_type, "Accept-Encoding": coding}
    before = most = process.memory_info().rss
    api, postgres, began = _cpu([process]), _cpu(_find_postgres()), time.perf_counter()
    size = 0
    with httpx.stream(
        "POST", f"{served.address}{_QUERY}", json=_BODY, headers=headers, timeout=600
    ) as answer:
        answer.raise_for_status()
        for piece in answer.iter_raw():
            size += len(piece)
            most = max(most, process.memory_info().rss)
    each = 1e6 / served.inferences
    return Cost(
        api=each * (_cpu([process]) - api),
        postgres=each * (_cpu(_find_postgres()) - postgres),
        bytes=size / served.inferences,
        seconds=time.perf_counter() - began,
        grown_mib=(most - before) / _MEBIBYTE,
    )


def _find_postgres() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["name"]) if "postgres" in (p.info["name"] or "")]


def _cpu(processes: list[psutil.Process]) -> float:
    """Return the seconds of CPU; those of processes that have ended do not count."""
    seconds = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="100k", help="inferences")
    size = SIZES[parser.parse_args().size]
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end=".\n\n")
    with serve(size) as served:
        print(f"{served.inferences:,} inferences with metadata and predictions.\n")
        print(
            "| format | coding | api µs | Postgres µs | bytes | seconds | memory | p99 alone"
            " | p99 beside | seconds beside |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for media_type in (NDJSON, *FORMATS):
            for coding in _CODINGS:
                print(format_line(served, media_type, coding), flush=True)


def format_line(served: Served, media_type: str, coding: str) -> str:
    """Return a line of the table: of a stream alone, and of another one beside another caller."""
    measure_stream(served, media_type, coding)
    cost = measure_stream(served, media_type, coding)
    with ask_beside(served.address, _QUERY) as alone:
        time.sleep(_ALONE_SECONDS)
    with ask_beside(served.address, _QUERY) as neighbour:
        beside = measure_stream(served, media_type, coding)
    return (
        f"| {media_type} | {coding} | {cost.api:.0f} | {cost.postgres:.0f} | {cost.bytes:.0f}"
        f" | {cost.seconds:.1f} | +{cost.grown_mib:.0f} MiB | {alone.p99_ms:.0f} ms"
        f" | {neighbour.p99_ms / alone.p99_ms:.1f} times | {beside.seconds:.1f} |"
    )


if __name__ == "__main__":
    main()
