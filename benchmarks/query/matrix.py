"""The matrix: every case asked for its page and its count, beside look-ups of the same run."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from .asker import Answer, Asker
from .bodies import Body, Case, recent
from .filters import mix
from .measure import Figures, measure

UNIT = "by primary key"
MIX = "generated filters"
# Name, and what is measured of all inferences of the model.
AGGREGATES: dict[str, Body] = {
    "time buckets: count and errors a day": {
        "measures": [{"function": "count"}, {"function": "share", "of": "ok", "is": False}],
        "group_by": [{"time": "day"}],
    },
    "group by a key of 2,000 values": {"group_by": ["data_source"], "limit": 50},
    "group by label": {"group_by": [{"label": True}]},
    "histogram of a number": {"measures": [{"function": "histogram", "of": "temperature"}]},
    "mean and percentiles": {
        "measures": [
            {"function": "mean", "of": "exposure"},
            {"function": "percentiles", "of": "exposure", "at": [50, 95, 99]},
        ]
    },
    "distinct values with a prefix": {
        "measures": [{"function": "distinct", "of": "segment", "prefix": "street-01"}]
    },
}


async def measure_look_ups(asker: Asker, *, runs: int) -> list[Figures]:
    """Measure the unit, and one inference by its id."""
    some = await asker.some(3 * runs + 10, Random(1))
    return [
        _print_line(await measure(UNIT, "unit", lambda n: asker.by_key(some[n][0]), runs=2 * runs)),
        _print_line(
            await measure("by id", "look-up", lambda n: asker.look_up(some[n][1]), runs=runs)
        ),
    ]


async def measure_cases(
    asker: Asker,
    cases: Iterable[Case],
    *,
    runs: int,
    seconds: float,
    kinds: Sequence[str] = ("page", "count"),
) -> list[Figures]:
    """Measure each case; a question that the api does not know is left out, which is printed."""
    figures = []
    for case in cases:
        if "filter" in case.make(Random(0)) and not await asker.understands(case.make(Random(0))):
            print(f"{case.name}: the api does not know it", flush=True)
            continue
        for kind in kinds:
            if kind in case.asks:
                figures.append(_print_line(await _measure_case(asker, case, kind, runs, seconds)))
    return figures


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
    figures: list[Figures] = []
    if not await asker.understands({}, "aggregate"):
        return figures
    for name, body in AGGREGATES.items():

        def ask(number: int, body: Body = body, name: str = name) -> Any:
            return asker.aggregate(body | recent(Random(f"{name} {number}")))

        line = await measure(name, "aggregate", ask, runs=runs, warming=1, seconds=seconds)
        figures.append(_print_line(line))
    return figures


async def measure_mix(
    asker: Asker, count: int, *, seconds: float
) -> tuple[list[Figures], list[Any]]:
    """Measure a page of every tree of the mix, as one line; return those too that took longer than
    200 ms."""
    bodies = mix(count)
    if not await asker.understands(bodies[0]):
        return [], []
    slow: list[Any] = []

    async def ask(number: int) -> Answer:
        body = bodies[number]
        answer = await asker.page(body)
        if number >= 0 and answer.seconds > 0.2:
            slow.append([body["filter"], round(1000 * answer.seconds), answer.rows, answer.whole])
        return answer

    line = await measure(MIX, "page", ask, runs=count, warming=count, seconds=seconds)
    return [_print_line(line)], slow


def _print_line(line: Figures) -> Figures:
    cut = f", {line.cut:.0%} cut off" if line.cut else ""
    print(
        f"{line.name:34} {line.kind:9} median {line.median:8.1f} ms, p99 {line.p99:8.1f},"
        f" first {line.first:8.1f} ({line.runs} runs, {line.rows:,.0f} rows{cut})",
        flush=True,
    )
    return line
