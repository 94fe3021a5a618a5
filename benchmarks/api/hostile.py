"""What a caller of hostile bodies does to the answers of another caller.

`python -m benchmarks.api.hostile KIND URL KEY` sends one kind of body on four connections until its
input ends, and prints how many were answered. The first kind is a small question: what any busy
neighbour does.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx

from benchmarks.results import percentile

_CONNECTIONS: Final = 4
_TURNS: Final = 3


def _build_polygon(points: int) -> dict[str, Any]:
    ring = [[[number % 90, 1] for number in range(points)]]
    shape = {"type": "Polygon", "coordinates": ring}
    return {"filter": {"op": "s_within", "args": [{"property": "location"}, shape]}}


# Each body has at most two megabytes.
_BODIES: Final[Mapping[str, Any]] = {
    "a small question": lambda: {"limit": 1},
    "polygon of 190,000 points": lambda: _build_polygon(190_000),
    "600,000 values": lambda: {"metadata_filter": [1] * 600_000},
    "20,000 unknown fields": lambda: {f"a{number}": 1 for number in range(19_990)},
    "a field's name of 1.9 MB": lambda: {"a" * 1_900_000: 1},
    "text filter of 4,900 values": lambda: {"filter": f"n IN ({','.join(['1'] * 4_900)})"},
    "text filter of 650 conditions": lambda: {"filter": " OR ".join(["n=1"] * 650)},
    "lists 900 deep": lambda: b'{"filter":' + b"[" * 900 + b"]" * 900 + b"}",
}
KINDS: Final = tuple(_BODIES)


async def measure_beside(
    kind: str, address: str, path: str, keys: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Ask alone and beside a caller of that kind, by turns: milliseconds of both, at p50 and p99.

    The first key asks, with the second the other caller does.
    """
    alone: list[float] = []
    beside: list[float] = []
    answered = 0
    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        for _ in range(_TURNS):
            alone += await _ask_for(seconds / _TURNS, client, path, keys[0])
            with _sending(kind, address + path, keys[1]) as process:
                await asyncio.sleep(0.5)
                beside += await _ask_for(seconds / _TURNS, client, path, keys[0])
            answered += int(process.stdout.read()) if process.stdout else 0
    times = [sorted(alone), sorted(beside)]
    return {
        "p50": [percentile(ordered, 0.5) for ordered in times],
        "p99": [percentile(ordered, 0.99) for ordered in times],
        "answers a second": answered / (seconds + 0.5 * _TURNS),
    }


async def _ask_for(seconds: float, client: httpx.AsyncClient, path: str, key: str) -> list[float]:
    """Milliseconds of each answer; within the caller's rate, so that none is refused."""
    times, head = [], {"Authorization": f"Bearer {key}"}
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        answer = await client.post(path, json={"limit": 1}, headers=head)
        times.append(1000 * (time.perf_counter() - began))
        answer.raise_for_status()
        await asyncio.sleep(0.015)
    return times


@contextmanager
def _sending(kind: str, url: str, key: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.api.hostile", kind, url, key]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


async def _send_for_ever(kind: str, url: str, key: str) -> None:
    body = _BODIES[kind]()
    if not isinstance(body, bytes):
        body = json.dumps(body, separators=(",", ":")).encode()
    head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answered = 0

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal answered
        while True:
            try:
                await client.post(url, content=body, headers=head)
                answered += 1
            except httpx.TransportError:  # refused amid its body: the connection is closed
                answered += 1

    async with httpx.AsyncClient(timeout=120) as client:
        tasks = [asyncio.create_task(send(client)) for _ in range(_CONNECTIONS)]
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    print(answered)
    sys.exit()


if __name__ == "__main__":
    asyncio.run(_send_for_ever(*sys.argv[1:]))
