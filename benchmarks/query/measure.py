"""Runs of questions, what they come to, and the lines of the matrix."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import Random
from statistics import median

from benchmarks.results import percentile

from .asker import Answer, Asker
from .questions import AGGREGATES, OVERVIEWS, Body, Case, Make, mix, recent

Ask = Callable[[int], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one line: milliseconds, over so many runs; `rows` a run, at the median.

    The shares of runs whose time was over before all was searched: those that answered in `part`,
    and how far they had come, and those that were `refused` with a 503.
    """

    name: str
    kind: str
    runs: int
    median: float
    p99: float
    rows: float
    part: float
    refused: float


async def measure(
    name: str, kind: str, ask: Ask, *, runs: int = 50, warming: int = 10, seconds: float = 15.0
) -> Figures:
    """Ask `runs` times with values of their own, after `warming` runs with others, or as many.

    A question that is slow is asked less often: not much longer than `seconds` in all, but for
    five runs.
    """
    began = time.perf_counter()
    for number in range(min(warming, runs)):
        if time.perf_counter() - began > seconds / 2:
            break
        await ask(-1 - number)
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
        rows=median(answer.rows for answer in answers),
        part=sum(not answer.whole and not answer.refused for answer in answers) / len(answers),
        refused=sum(answer.refused for answer in answers) / len(answers),
    )


async def measure_look_ups(asker: Asker, *, runs: int) -> list[Figures]:
    """Measure the unit of all ratios, and one inference by its id."""
    some = await asker.some(3 * runs + 10, Random(1))
    unit = await measure(
        "by primary key", "unit", lambda n: asker.by_key(some[n][0]), runs=2 * runs
    )
    by_id = await measure("by id", "look-up", lambda n: asker.look_up(some[n][1]), runs=runs)
    return [_print_line(line) for line in (unit, by_id)]


async def measure_cases(
    asker: Asker, cases: Iterable[Case], *, runs: int, seconds: float
) -> list[Figures]:
    """Measure the page and the count of each case."""
    return [
        _print_line(await _measure_case(asker, case, kind, runs, seconds))
        for case in cases
        for kind in ("page", "count")
        if kind in case.asks
    ]


async def _measure_case(asker: Asker, case: Case, kind: str, runs: int, seconds: float) -> Figures:
    ask = asker.page if kind == "page" else asker.count
    return await measure(
        case.name,
        case.kind(kind),
        lambda n: ask(case.make(Random(f"{case.name} {n}"))),
        runs=runs,
        seconds=seconds,
    )


async def measure_aggregates(asker: Asker, *, runs: int, seconds: float) -> list[Figures]:
    """Measure figures over a whole model, each with a window that ends elsewhere."""
    figures = []
    for name, body in AGGREGATES.items():

        def ask(number: int, body: Body = body, name: str = name) -> Awaitable[Answer]:
            return asker.aggregate(body | recent(Random(f"{name} {number}")))

        line = await measure(name, "aggregate", ask, runs=runs, warming=1, seconds=seconds)
        figures.append(_print_line(line))
    for name, make in OVERVIEWS.items():

        def look(number: int, make: Make = make, name: str = name) -> Awaitable[Answer]:
            return asker.overview(make(Random(f"{name} {number}")))

        line = await measure(name, "overview", look, runs=runs, warming=1, seconds=seconds)
        figures.append(_print_line(line))
    return figures


async def measure_mix(asker: Asker, count: int, *, seconds: float) -> list[Figures]:
    """Measure a page of each filter of the mix, as one line."""
    bodies = mix(count)
    line = await measure(
        "generated filters",
        "page",
        lambda number: asker.page(bodies[number]),
        runs=count,
        warming=count,
        seconds=seconds,
    )
    return [_print_line(line)]


def _print_line(line: Figures) -> Figures:
    cut = line.part + line.refused
    print(
        f"{line.name:34} {line.kind:9} median {line.median:8.1f} ms, p99 {line.p99:8.1f}"
        f" ({line.runs} runs, {line.rows:,.0f} rows{f', {cut:.0%} cut off' if cut else ''})",
        flush=True,
    )
    return line
