"""`make bench-export SIZE=100k`: all inferences of a model as a stream, in each format.

CPU is that of the api and of Postgres together, for each inference. Beside each stream another
caller asks for pages of 50, one after the other; alone it asks before and after.
"""

import argparse
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles

import httpx
import psutil

from benchmarks.machine import machine
from benchmarks.query.__main__ import SIZES
from inference_store.api.negotiation import NDJSON
from inference_store.export.formats import FORMATS

from .stage import MODEL, Served, serve

_BODY = {"include": ["metadata", "predictions"]}
_PAGE = {"limit": 50, "include": ["metadata", "predictions"]}
_CODINGS = ("identity", "zstd")
_QUERY = f"/v1/models/{MODEL}/inferences/query"
_ALONE_SECONDS = 4.0
_MEBIBYTE = 2**20


@dataclass(slots=True)
class Neighbour:
    """Another caller: the seconds that its pages took."""

    seconds: list[float] = field(default_factory=list)

    @property
    def p99_ms(self) -> float:
        """Return the 99th percentile in milliseconds."""
        return 1000 * quantiles(self.seconds, n=100)[98]


@contextmanager
def ask_beside(address: str) -> Iterator[Neighbour]:
    """Let another caller ask while the block runs."""
    neighbour, stop = Neighbour(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            while not stop.is_set():
                began = time.perf_counter()
                client.post(_QUERY, json=_PAGE).raise_for_status()
                neighbour.seconds.append(time.perf_counter() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield neighbour
    finally:
        stop.set()
        thread.join()


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
        with ask_beside(served.address) as alone:
            time.sleep(_ALONE_SECONDS)
        print(f"{served.inferences:,} inferences with metadata and predictions.")
        print(f"Another caller alone: p99 {alone.p99_ms:.0f} ms.\n")
        print("| format | coding | api µs | Postgres µs | bytes | seconds | memory | p99 beside |")
        print("|---|---|---|---|---|---|---|---|")
        for media_type in (NDJSON, *FORMATS):
            for coding in _CODINGS:
                print(format_line(served, media_type, coding, alone.p99_ms), flush=True)


def format_line(served: Served, media_type: str, coding: str, alone_ms: float) -> str:
    """Return a line of the table: of a stream alone, and of a second one beside another caller."""
    measure_stream(served, media_type, coding)
    cost = measure_stream(served, media_type, coding)
    with ask_beside(served.address) as neighbour:
        measure_stream(served, media_type, coding)
    return (
        f"| {media_type} | {coding} | {cost.api:.0f} | {cost.postgres:.0f} | {cost.bytes:.0f}"
        f" | {cost.seconds:.1f} | +{cost.grown_mib:.0f} MiB"
        f" | {neighbour.p99_ms / alone_ms:.1f} times |"
    )


if __name__ == "__main__":
    main()
