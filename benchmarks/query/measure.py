"""Runs of one question, and what they come to."""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .asker import Answer

Ask = Callable[[int], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one line: milliseconds, over so many runs; `rows` a run, at the median.

    `cut`: the share of runs whose time was over before all was searched: those that answered in
    `part`, and how far they had come, and those that were `refused` with a 503. `first`: the
    slowest of the runs that came before, which found what they needed on the disk.
    """

    name: str
    kind: str
    runs: int
    median: float
    p99: float
    longest: float
    first: float
    rows: float
    cut: float
    part: float = 0.0
    refused: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def measure(
    name: str, kind: str, ask: Ask, *, runs: int = 50, warming: int = 10, seconds: float = 15.0
) -> Figures:
    """Ask `runs` times with values of their own, after `warming` runs with others, or as many.

    A question that is slow is asked less often: not much longer than `seconds` in all, but for
    five runs.
    """
    began = time.perf_counter()
    first: list[Answer] = []
    while len(first) < min(warming, runs) and time.perf_counter() - began < seconds / 2:
        first.append(await ask(-1 - len(first)))
    answers: list[Answer] = []
    for number in range(runs):
        answers.append(await ask(number))
        if len(answers) >= 5 and time.perf_counter() - began > seconds:
            break
    times = sorted(1000 * answer.seconds for answer in answers)
    return Figures(
        name=name,
        kind=kind,
        runs=len(times),
        median=median(times),
        p99=percentile(times, 0.99),
        longest=times[-1],
        first=1000 * max((answer.seconds for answer in first), default=0.0),
        rows=median(answer.rows for answer in answers),
        cut=sum(not answer.whole for answer in answers) / len(answers),
        part=sum(not answer.whole and not answer.refused for answer in answers) / len(answers),
        refused=sum(answer.refused for answer in answers) / len(answers),
    )


def percentile(ordered: list[float], share: float) -> float:
    """The nearest rank: of fewer than a hundred the 99th is the last."""
    return ordered[math.ceil(share * len(ordered)) - 1]
