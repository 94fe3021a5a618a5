"""`make bench-neighbours`: what a caller of hostile bodies does to the answers of another caller.

A real api on real Postgres and MinIO. One tenant asks small questions, one after the other: alone,
and beside a process with another key that sends one kind of body on four connections, by turns. So
the ratio is of one run. The first kind is a small question: what any busy neighbour does here.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate
from tests.servers.kafka import Kafka
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.postgres import PostgresServer
from tests.service_process import Service

from benchmarks.query.measure import percentile

from .machine import machine

_BUCKET: Final = "bench"
_TOKEN: Final = "a-token-of-the-benchmark"
_ASK: Final = "/v1/models/model/inferences/query"
_CONNECTIONS: Final = 4


def _polygon(points: int) -> dict[str, Any]:
    ring = [[[number % 90, 1] for number in range(points)]]
    shape = {"type": "Polygon", "coordinates": ring}
    return {"filter": {"op": "s_within", "args": [{"property": "location"}, shape]}}


def hostile_bodies() -> Mapping[str, bytes]:
    """Return what the neighbour sends, each of at most two megabytes."""
    bodies: dict[str, Any] = {
        "a small question": {"limit": 1},
        "polygon of 190,000 points": _polygon(190_000),
        "600,000 values": {"metadata_filter": [1] * 600_000},
        "20,000 unknown fields": {f"a{number}": 1 for number in range(19_990)},
        "a field's name of 1.9 MB": {"a" * 1_900_000: 1},
        "text filter of 4,900 values": {"filter": f"n IN ({','.join(['1'] * 4_900)})"},
        "text filter of 650 conditions": {"filter": " OR ".join(["n=1"] * 650)},
    }
    encoded = {
        name: json.dumps(body, separators=(",", ":")).encode() for name, body in bodies.items()
    }
    return encoded | {"lists 900 deep": b'{"filter":' + b"[" * 900 + b"]" * 900 + b"}"}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of each kind, alone and beside")
    parser.add_argument("--rate", default="6000", help="API_RATE_LIMIT_PER_MINUTE; 0: no limit")
    parser.add_argument("--send", nargs=3, metavar=("KIND", "URL", "KEY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        asyncio.run(_send_for_ever(*arguments.send))
    description = machine()
    print(", ".join(f"{name} {value}" for name, value in description.items()), end=".\n\n")
    asyncio.run(_measure(arguments.seconds, arguments.rate))


async def _measure(seconds: float, rate: str) -> None:
    print("| the neighbour sends | answers to it a second | p50 alone | beside | ratio |", end="")
    print(" p99 alone | beside | ratio |\n|---|---|---|---|---|---|---|---|")
    async with _serving(rate) as base, httpx.AsyncClient(base_url=base, timeout=120) as client:
        mine, other = [await _key(client, name) for name in ("tenant", "neighbour")]
        await _ask_for(seconds, client, mine)  # caches, connections
        for kind in hostile_bodies():
            alone, beside, sent = [], [], 0
            for _ in range(3):
                alone += await _ask_for(seconds / 3, client, mine)
                with _neighbour(kind, base, other) as process:
                    await asyncio.sleep(0.5)
                    beside += await _ask_for(seconds / 3, client, mine)
                sent += int(process.stdout.read()) if process.stdout else 0
            cells = []
            for share in (0.5, 0.99):
                quiet, busy = (1000 * percentile(sorted(times), share) for times in (alone, beside))
                cells.append(f"{quiet:.1f} ms | {busy:.1f} ms | {busy / quiet:.1f}")
            print(f"| {kind} | {sent / (seconds + 1.5):.0f} | {' | '.join(cells)} |", flush=True)


@asynccontextmanager
async def _serving(rate: str) -> AsyncIterator[str]:
    """The URL of an api."""
    port = str(free_port())
    with PostgresServer() as postgres, MinioServer() as s3, tempfile.TemporaryDirectory() as folder:
        dsn = postgres.create_database("bench")
        migrate(dsn)
        s3.create_bucket(_BUCKET)
        more = {"AUTH": "on", "API_TOKEN": _TOKEN, "API_PORT": port}
        more["API_RATE_LIMIT_PER_MINUTE"] = rate
        nobody = Kafka("127.0.0.1:1")
        environment = service_environment(dsn, nobody, s3, _BUCKET, **more)
        service = Service("api", environment, Path(folder))
        try:
            service.wait_ready()
            yield f"http://127.0.0.1:{port}"
        finally:
            service.stop()


async def _key(client: httpx.AsyncClient, name: str) -> str:
    head = {"Authorization": f"Bearer {_TOKEN}"}
    await client.put("/v1/models/model", json={"name": "model"}, headers=head)
    body = {"name": name, "grants": [{"role": "reader"}]}
    return str(
        (await client.post("/v1/keys", json=body, headers=head)).raise_for_status().json()["key"]
    )


async def _ask_for(seconds: float, client: httpx.AsyncClient, key: str) -> list[float]:
    """Seconds of each answer; within its rate, so that none is refused."""
    times, head = [], {"Authorization": f"Bearer {key}"}
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        answer = await client.post(_ASK, json={"limit": 1}, headers=head)
        times.append(time.perf_counter() - began)
        answer.raise_for_status()
        await asyncio.sleep(0.015)
    return times


@contextmanager
def _neighbour(kind: str, base: str, key: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.neighbours", "--send", kind, base, key]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


async def _send_for_ever(kind: str, base: str, key: str) -> None:
    """Send until the parent closes our input; print how many were answered."""
    body = hostile_bodies()[kind]
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answered = 0

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal answered
        while True:
            try:
                await client.post(_ASK, content=body, headers=head)
                answered += 1
            except httpx.TransportError:  # refused amid its body: the connection is closed
                answered += 1

    async with httpx.AsyncClient(base_url=base, timeout=120) as client:
        tasks = [asyncio.create_task(send(client)) for _ in range(_CONNECTIONS)]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    print(answered)
    sys.exit()


if __name__ == "__main__":
    main()
