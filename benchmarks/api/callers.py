"""Asks a server by one caller or many, each as soon as it has its answer."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp
import psutil

from benchmarks.query.measure import percentile


@dataclass(frozen=True, slots=True)
class Question:
    """The request that is sent; `path` and `body` are called again for each number."""

    path: Callable[[int], str]
    body: Callable[[int], Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """GET, or POST with a body."""
        return "GET" if self.body is None else "POST"


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds of an answer, answers a second, and milliseconds of the server's CPU each."""

    median_ms: float
    p99_ms: float
    a_second: float
    cpu_ms: float
    bytes: int


async def measure(
    base: str, question: Question, *, pid: int, callers: int, seconds: float
) -> Figures:
    """Ask for so many seconds. Raises aiohttp.ClientResponseError if an answer is a refusal."""
    times: list[float] = []
    numbers = iter(range(10**9))
    size = 0

    async def call(session: aiohttp.ClientSession) -> None:
        nonlocal size
        while time.perf_counter() < end:
            number = next(numbers)
            body = None if question.body is None else question.body(number)
            began = time.perf_counter()
            async with session.request(
                question.method, base + question.path(number), json=body, headers=question.headers
            ) as answer:
                answer.raise_for_status()
                size = len(await answer.read())
            times.append(time.perf_counter() - began)

    connector = aiohttp.TCPConnector(limit=callers)
    async with aiohttp.ClientSession(connector=connector) as session:
        before, began = _cpu_seconds(pid), time.perf_counter()
        end = began + seconds
        await asyncio.gather(*(call(session) for _ in range(callers)))
        elapsed, cpu = time.perf_counter() - began, _cpu_seconds(pid) - before
    milliseconds = sorted(1000 * spent for spent in times)
    return Figures(
        median_ms=median(milliseconds),
        p99_ms=percentile(milliseconds, 0.99),
        a_second=len(times) / elapsed,
        cpu_ms=1000 * cpu / len(times),
        bytes=size,
    )


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
