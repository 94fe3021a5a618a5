"""`python -m benchmarks.export.jobs`: the memory of the retention service while it exports.

It exports all inferences of a model with their metadata and predictions, in each of these formats,
one after the other, twice. MiB of resident memory before, at most, and after; and by how much it
grew without the pages of files, which the system can take away at any time.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import psutil
from tests.servers.environment import service_environment
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.service_process import Service

from benchmarks.machine import machine
from benchmarks.query.__main__ import SIZES
from benchmarks.query.dataset import DATABASE
from benchmarks.query.population import MODELS

from .metadata import serve_dataset

BUCKET = "captures"
_PAUSE_SECONDS = 0.02
IDLE_SECONDS = 10.0
_ROUNDS = 2
_FORMATS = ("jsonl", "parquet")
_MEBIBYTE = 2**20


class Question(NamedTuple):
    """What is exported."""

    model_id: str
    format: str
    blobs: str = "none"


@dataclass(frozen=True, slots=True)
class Exporting:
    """A client of the api, and the process that carries exports out."""

    client: httpx.Client
    retention: psutil.Process

    def read_memory(self) -> tuple[int, int]:
        """Return the resident bytes of the retention service: all, and those of no file."""
        memory = self.retention.memory_info()
        return memory.rss, memory.rss - memory.shared


@contextmanager
def copy_dataset(size: int) -> Iterator[str]:
    """Yield the address of a copy: what is exported belongs to a bucket that goes with the run."""
    with serve_dataset(size) as original:
        server, name = Postgres(original), f"exports-{uuid4()}"
        yield server.create_database(name, template=DATABASE)
        server.drop_database(name)


@contextmanager
def serve_both(size: int) -> Iterator[Exporting]:
    """Yield an api and a retention service over `size` inferences of all models."""
    with ExitStack() as stack:
        dsn = stack.enter_context(copy_dataset(size))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(BUCKET)
        yield start_both(stack, dsn, minio)


def start_both(stack: ExitStack, dsn: str, minio: MinioServer) -> Exporting:
    """Start an api and a retention service, which end with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port = str(free_port())
    environment = service_environment(dsn, Kafka("127.0.0.1:1"), minio, BUCKET, API_PORT=port)
    services = [Service(name, environment, folder) for name in ("api", "retention")]
    for service in services:
        stack.callback(service.stop)
        service.wait_ready()
    client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}/v1"))
    return Exporting(client, psutil.Process(services[1].process.pid))


def print_head() -> None:
    """Print the head of the table."""
    names = ("format", "blobs", "rows", "before", "at most", "after", "grown", "anonymous")
    print("|", " | ".join((*names, "seconds", "CPU µs")), "|")
    print("|---|---|---|---|---|---|---|---|---|---|")


def measure_export(exporting: Exporting, question: Question) -> str:
    """Export everything once; return a line of the table."""
    before = most = exporting.read_memory()
    cpu, began = _read_cpu(exporting), time.perf_counter()
    body = {"format": question.format, "blobs": question.blobs}
    export = _call(exporting, "POST", f"/models/{question.model_id}/exports", body)
    while export["state"] not in {"done", "failed"}:
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            now = exporting.read_memory()
            most = (max(most[0], now[0]), max(most[1], now[1]))
            time.sleep(_PAUSE_SECONDS)
        export = _call(exporting, "GET", f"/exports/{export['id']}")
    assert export["state"] == "done", export
    seconds, cpu = time.perf_counter() - began, _read_cpu(exporting) - cpu
    time.sleep(IDLE_SECONDS)
    memory = [value[0] / _MEBIBYTE for value in (before, most, exporting.read_memory())]
    grown = [(most[number] - before[number]) / _MEBIBYTE for number in (0, 1)]
    cells = [
        question.format,
        question.blobs,
        str(export["rows"]),
        *(f"{value:.0f}" for value in memory),
    ]
    cells += [*(f"+{value:.0f}" for value in grown), f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} | {1e6 * cpu / export['rows']:.0f} |"


def _call(exporting: Exporting, method: str, path: str, body: Any = None) -> dict[str, Any]:
    answer = exporting.client.request(method, path, json=body, timeout=60)
    answer.raise_for_status()
    return dict(answer.json())


def _read_cpu(exporting: Exporting) -> float:
    times = exporting.retention.cpu_times()
    return times.user + times.system


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="100k", help="inferences")
    size = SIZES[parser.parse_args().size]
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end=".\n\n")
    with serve_both(size) as exporting:
        time.sleep(IDLE_SECONDS)
        print_head()
        for _ in range(_ROUNDS):
            for format in _FORMATS:
                print(measure_export(exporting, Question(MODELS[0], format)), flush=True)


if __name__ == "__main__":
    main()
