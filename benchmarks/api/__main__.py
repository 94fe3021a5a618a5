"""`make bench-api`: by id, pages, a count, a picture and a stream, by 1 and by 32 callers.

The api has access control, rights and the audit on. Beside it, in the same rounds, a bare route
that sends one prepared statement and dumps its rows; pictures are held against MinIO's own GET.
"""

import argparse
import asyncio
from statistics import median

from benchmarks.machine import machine

from .callers import Figures, measure
from .cases import Case, cases, stream
from .stage import Stage, stage

_CALLERS = (1, 32)
_MOST_STREAM_US = 250


def main() -> None:
    """Measure, and print the tables of docs/reference/benchmarks/api.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inferences", type=int, default=20_000, help="that are stored")
    parser.add_argument("--rounds", type=int, default=5, help="alternations; medians are printed")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each line in each round")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end=".\n\n")
    with stage(arguments.inferences) as ready:
        asyncio.run(_measure(ready, arguments.rounds, arguments.seconds))


async def _measure(ready: Stage, rounds: int, seconds: float) -> None:
    for callers in _CALLERS:
        print(f"{callers} caller{'s' if callers > 1 else ''}:\n")
        print(
            "| what is asked | ms | floor ms | times | bar | p99 ms | answers/s | floor | CPU ms |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for case in cases(ready):
            print(await _measure_line(ready, case, callers, rounds, seconds), flush=True)
        print()
    print(await _measure_stream(ready, rounds))


async def _measure_line(ready: Stage, case: Case, callers: int, rounds: int, seconds: float) -> str:
    ours: list[Figures] = []
    floors: list[Figures] = []
    for _ in range(rounds + 1):
        api, floor = ready.api, ready.floor
        ours.append(
            await measure(api.base, case.api, pid=api.pid, callers=callers, seconds=seconds)
        )
        if case.floor is not None:
            base = "" if case.most_more_ms else floor.base
            floors.append(
                await measure(base, case.floor, pid=floor.pid, callers=callers, seconds=seconds)
            )
    return _format_line(case, ours[1:], floors[1:], held=callers == 1)  # the first one warms up


def _format_line(case: Case, ours: list[Figures], floors: list[Figures], *, held: bool) -> str:
    times = median(a.median_ms / b.median_ms for a, b in zip(ours, floors, strict=True))
    more = median(a.median_ms - b.median_ms for a, b in zip(ours, floors, strict=True))
    bar, missed = "", False
    if held and case.most_times is not None:
        bar, missed = f"≤ {case.most_times:g}", times > case.most_times
    if held and case.most_more_ms is not None:
        bar, missed = f"≤ {case.most_more_ms:g} ms more", more > case.most_more_ms
    cells = [
        case.name,
        f"{median(figures.median_ms for figures in ours):.1f}",
        f"{median(figures.median_ms for figures in floors):.1f}",
        f"{times:.1f}",
        bar + (" **no**" if missed else ""),
        f"{median(figures.p99_ms for figures in ours):.1f}",
        f"{median(figures.a_second for figures in ours):.0f}",
        f"{median(figures.a_second for figures in floors):.0f}",
        f"{median(figures.cpu_ms for figures in ours):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


async def _measure_stream(ready: Stage, rounds: int) -> str:
    streams = [
        # at least one stream, however short the time
        await measure(ready.api.base, stream(ready), pid=ready.api.pid, callers=1, seconds=0.001)
        for _ in range(rounds)
    ]
    microseconds = [1000 * figures.cpu_ms / len(ready.uids) for figures in streams]
    bar = f"≤ {_MOST_STREAM_US}" + (" **no**" if median(microseconds) > _MOST_STREAM_US else "")
    return (
        f"A stream of {len(ready.uids):,} inferences with metadata and predictions:"
        f" {median(microseconds):.0f} µs of the api's CPU an inference (bar {bar}),"
        f" {streams[-1].bytes / len(ready.uids):.0f} bytes each."
    )


if __name__ == "__main__":
    main()
