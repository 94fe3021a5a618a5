"""Asks a server by one caller or many, each as soon as it has its answer."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import aiohttp

from benchmarks.results import percentile
from benchmarks.servers import Served, cpu_seconds


@dataclass(frozen=True, slots=True)
class Question:
    """The request that is sent: a GET, or a POST with a body; `path` is called for each number."""

    path: Callable[[int], str]
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds of an answer, answers a second, and milliseconds of the server's CPU each."""

    median_ms: float
    p99_ms: float
    a_second: float
    cpu_ms: float


async def measure(server: Served, question: Question, *, callers: int, seconds: float) -> Figures:
    """Ask for so many seconds. Raises aiohttp.ClientResponseError if an answer is a refusal."""
    method = "GET" if question.body is None else "POST"
    milliseconds: list[float] = []
    numbers = iter(range(10**9))

    async def call(session: aiohttp.ClientSession) -> None:
        while time.perf_counter() < end:
            url = server.address + question.path(next(numbers))
            began = time.perf_counter()
            async with session.request(
                method, url, json=question.body, headers=question.headers
            ) as answer:
                answer.raise_for_status()
                await answer.read()
            milliseconds.append(1000 * (time.perf_counter() - began))

    connector = aiohttp.TCPConnector(limit=callers)
    async with aiohttp.ClientSession(connector=connector) as session:
        before, began = cpu_seconds([server.pid]), time.perf_counter()
        end = began + seconds
        await asyncio.gather(*(call(session) for _ in range(callers)))
        elapsed, cpu = time.perf_counter() - began, cpu_seconds([server.pid]) - before
    milliseconds.sort()
    return Figures(
        median_ms=median(milliseconds),
        p99_ms=percentile(milliseconds, 0.99),
        a_second=len(milliseconds) / elapsed,
        cpu_ms=1000 * cpu / len(milliseconds),
    )
