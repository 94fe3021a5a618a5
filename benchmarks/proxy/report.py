"""The results as a table of bars and tables of figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.results import Bar, format_table, mark

STOPPED: Final = "proxy, S3 and Kafka stopped"
_WAYS: Final = ("direct", "nginx", "proxy", STOPPED)
# What it is held to: milliseconds added at the median, times of nginx's p99, share that stopping
# S3 and Kafka may change, MiB that memory may move either way.
ADDED, TIMES, CHANGED, MOVED = 1.5, 2.0, 0.10, 20.0
# Microseconds, shares of calls, and requests.
CPU, KEPT_AT_HALF, KEPT_FULL, PUTS = 600.0, 0.999, 0.95, 20_000
# Times of a direct call's p50.
BESIDE: Final = 3.0
# Below it something else than what is measured set the pace.
_FULL: Final = 0.9
Line = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def list_bars(results: Mapping[str, Any]) -> Iterator[Bar]:
    """Yield the worst figure for each bar."""
    lines = list(results["lines"].values())
    yield _hold("p50 added to a direct call, ms", map(_add, lines), ADDED)
    yield _hold("p99, times of nginx's p99", map(_divide, lines), TIMES)
    for figure in ("p50", "p99"):
        changes = [_change(line, "half", figure) for line in lines]
        yield _hold(
            f"{figure} with S3 and Kafka stopped, times of with both running", changes, 1 + CHANGED
        )
    rates = [1 / _change(line, "saturation", "rate") for line in lines]
    yield _hold(
        "calls a second with both running, times of with both stopped", rates, 1 / (1 - CHANGED)
    )
    cpu = [_find(line, "proxy", "half", "cpu") for line in lines]
    yield _hold("CPU of proxy and capture a call of the first kind, µs", cpu[:1], CPU)
    for what, bar in (("half", KEPT_AT_HALF), ("saturation", KEPT_FULL)):
        kept = [1 - _find_captured(line["proxy"][what]) for line in lines]
        yield _hold(f"not captured at {what}, share", kept, 1 - bar)
    yield _hold("PUTs a million calls, at 500 a second", [results["puts"]], PUTS)
    beside = results["beside"]
    yield _hold("p50 beside a busy core, times of a direct call's", [beside["times"]], BESIDE)
    yield _hold("not captured then, after SIGTERM", [beside["seen"] - beside["published"]], 0)
    if overload := results.get("overload"):
        yield _hold("memory in overload, ± MiB", [_find_moved(overload)], MOVED)


def _hold(what: str, figures: Iterable[float], bar: float) -> Bar:
    values = list(figures)
    met = sum(value <= bar for value in values)
    met_by = f" ({met} of {len(values)} calls meet it)" if len(values) > 1 else ""
    return Bar(what, f"≤ {bar:.3g}", f"{max(values):.2f}{met_by}", met == len(values))


def format_figures(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was measured and each table, with what it means."""
    lines = results["lines"].items()
    rounds = len(next(iter(results["lines"].values()))["proxy"]["half"])
    yield (
        f"Medians of {rounds} rounds of {results['seconds']:g} s a measurement;"
        f" settings: {', '.join(results['settings']) or 'default'}."
    )
    yield (
        "At the rate that keeps the process which serves busy half of the time, calls due steadily;"
        " milliseconds from when a call was due:"
    )
    head = "call | a second | direct, p50 | p99 | nginx, p50 | p99 | proxy, p50 | p99 | p50 added"
    head += " | p99 of nginx's | S3 and Kafka stopped, p50 | p99 | captured"
    yield format_table(head, (_list_half(*line) for line in lines))
    yield (
        "As many calls as go through, 32 at once; ≥: its own core was not full, so the load or the"
        " stub set the pace. µs are CPU of that process for each call, at half load:"
    )
    head = "call | direct/s | nginx/s | proxy/s | S3 and Kafka stopped/s | captured | nginx µs"
    head += " | proxy µs | S3 and Kafka stopped µs"
    yield format_table(head, (_list_saturation(*line) for line in lines))
    if overload := results.get("overload"):
        yield _format_overload(overload)


def _list_half(name: str, line: Line) -> Iterator[str]:
    times = {way: [_find(line, way, "half", figure) for figure in ("p50", "p99")] for way in _WAYS}
    yield from (name, f"{_find(line, 'proxy', 'half', 'rate'):,.0f}")
    yield from (f"{figure:.2f}" for way in _WAYS[:3] for figure in times[way])
    yield f"{_add(line):.2f}{mark(_add(line) <= ADDED)}"
    yield f"{_divide(line):.1f}{mark(_divide(line) <= TIMES)}"
    for stopped, running in zip(times[STOPPED], times["proxy"], strict=True):
        yield f"{stopped:.2f}{mark(stopped <= running * (1 + CHANGED))}"
    yield _format_captured(line["proxy"]["half"])


def _list_saturation(name: str, line: Line) -> Iterator[str]:
    yield from (name, *(_format_rate(line, way) for way in _WAYS[:3]))
    kept = _change(line, "saturation", "rate") >= 1 - CHANGED
    yield f"{_format_rate(line, STOPPED)}{mark(kept)}"
    yield _format_captured(line["proxy"]["saturation"])
    yield from (f"{_find(line, way, 'half', 'cpu'):,.0f}" for way in _WAYS[1:])


def _format_overload(overload: Mapping[str, Any]) -> str:
    moved = _find_moved(overload)
    tenths = ", ".join(f"{size:.0f}" for size in overload["tenths"])
    captures = overload["captures"]
    return (
        f"{overload['minutes']:g} minutes of overload with S3 stopped ({overload['workload']},"
        f" {overload['rate']:,.0f} calls/s, {overload['failed']:,.0f} failed,"
        f" p99 {overload['p99']:.0f} ms):"
        f" the proxy's memory, MiB, over the run: {tenths}. After the first tenth, in which the"
        f" budget fills, it moves ± {moved:.0f} MiB{mark(moved <= MOVED)}. Of"
        f" {captures['seen']:,.0f} exchanges {captures['dropped']:,.0f} were dropped, and counted."
    )


def _add(line: Line) -> float:
    return _find(line, "proxy", "half", "p50") - _find(line, "direct", "half", "p50")


def _divide(line: Line) -> float:
    return _find(line, "proxy", "half", "p99") / _find(line, "nginx", "half", "p99")


def _change(line: Line, what: str, figure: str) -> float:
    return _find(line, STOPPED, what, figure) / _find(line, "proxy", what, figure)


def _find_moved(overload: Mapping[str, float]) -> float:
    return (overload["most"] - overload["least"]) / 2


def _find(line: Line, way: str, what: str, figure: str) -> float:
    return median(figures[figure] for figures in line[way][what])


def _format_rate(line: Line, way: str) -> str:
    least = "" if _find(line, way, "saturation", "share of a core") >= _FULL else "≥ "
    return f"{least}{_find(line, way, 'saturation', 'rate'):,.0f}"


def _format_captured(rounds: Sequence[Mapping[str, Any]]) -> str:
    return f"{_find_captured(rounds):.1%}"


def _find_captured(rounds: Sequence[Mapping[str, Any]]) -> float:
    """Return the share that was not dropped: on Kafka already, or waiting."""
    seen = sum(figures["captures"]["seen"] for figures in rounds)
    dropped = sum(figures["captures"]["dropped"] for figures in rounds)
    return 1 - dropped / seen if seen else 0.0
