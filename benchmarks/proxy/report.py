"""`python -m benchmarks.proxy.report`: the results as a page of the docs."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.pages import Bar, write_bars, write_figures

RESULTS: Final = Path(__file__).with_name("results.json")
TITLE: Final = "Figures: the proxy"
_WAYS: Final = ("direct", "nginx", "proxy", "proxy, S3 and Kafka stopped")
# What it is held to: milliseconds added at the median, times of nginx's p99, share that stopping
# S3 and Kafka may change, MiB that memory may move either way.
ADDED, TIMES, CHANGED, MOVED = 1.5, 2.0, 0.10, 20.0
# Below it something else than what is measured set the check.
_FULL: Final = 0.9
Line = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def main() -> None:
    """Write the page of figures and the table of bars."""
    results = json.loads(RESULTS.read_text())
    write_figures("proxy", TITLE, format_section(results))
    write_bars("proxy", list_bars(results))


def list_bars(results: Mapping[str, Any]) -> Iterator[Bar]:
    """Yield the worst figure for each bar."""
    lines = results["lines"].values()
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
    if overload := results.get("overload"):
        moved = (overload["most"] - overload["least"]) / 2
        yield _hold("memory in overload, ± MiB", [moved], MOVED)


def _hold(what: str, figures: Iterable[float], bar: float) -> Bar:
    """Return the worst of the figures beside its bar."""
    values = list(figures)
    met = sum(value <= bar for value in values)
    met_by = f" ({met} of {len(values)} calls meet it)" if len(values) > 1 else ""
    return Bar(what, f"≤ {bar:.3g}", f"{max(values):.2f}{met_by}", met == len(values))


def _add(line: Line) -> float:
    return _of(line, "proxy", "half", "p50") - _of(line, "direct", "half", "p50")


def _divide(line: Line) -> float:
    return _of(line, "proxy", "half", "p99") / _of(line, "nginx", "half", "p99")


def _change(line: Line, what: str, figure: str) -> float:
    """Return a figure with S3 and Kafka stopped, in times of what it is without."""
    return _of(line, _WAYS[3], what, figure) / _of(line, "proxy", what, figure)


def format_section(results: Mapping[str, Any]) -> str:
    """Return all of it, in Markdown."""
    lines = results["lines"]
    parts = [_machine(results), "\n".join(_half(lines)), "\n".join(_saturation(lines))]
    if stripping := results.get("stripping"):
        parts.append("\n".join(_stripping(stripping)))
    if overload := results.get("overload"):
        parts.append(_overload(overload))
    return "\n\n".join(parts)


def _machine(results: Mapping[str, Any]) -> str:
    machine, line = results["machine"], next(iter(results["lines"].values()))
    settings = ", ".join(f"`{name}={value}`" for name, value in results["settings"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory GiB']} GiB,"
        f" Python {machine['python']}; load before the run {machine['load before']};"
        f" medians of {len(line['proxy']['half'])} rounds of {results['seconds']:g} s"
        " a measurement;"
        f" {f'settings {settings}' if settings else 'default settings'}."
    )


def _half(lines: Mapping[str, Line]) -> Iterator[str]:
    yield (
        "At the rate that keeps the process which serves busy half of the time, calls due steadily;"
        " milliseconds from when a call was due:\n"
    )
    yield (
        "| call | a second | direct, p50 | p99 | nginx, p50 | p99 | proxy, p50 | p99 | p50 added |"
        " p99 of nginx's | S3 and Kafka stopped, p50 | p99 | captured |"
    )
    yield "|---" * 13 + "|"
    for name, line in lines.items():
        times = {
            way: [_of(line, way, "half", figure) for figure in ("p50", "p99")] for way in _WAYS
        }
        direct, nginx, proxy, stopped = (times[way] for way in _WAYS)
        added, ratio = proxy[0] - direct[0], proxy[1] / nginx[1]
        cells = [
            *(name, f"{_of(line, 'proxy', 'half', 'rate'):,.0f}"),
            *(f"{figure:.2f}" for figure in (*direct, *nginx, *proxy)),
            f"{added:.2f}{_missed(added > ADDED)}",
            f"{ratio:.1f}{_missed(ratio > TIMES)}",
            *(_beside(*pair) for pair in zip(stopped, proxy, strict=True)),
            _captured(line["proxy"]["half"]),
        ]
        yield f"| {' | '.join(cells)} |"


def _saturation(lines: Mapping[str, Line]) -> Iterator[str]:
    yield (
        "As many calls as go through, 32 at once; ≥: its own core was not full, so the load or the"
        " stub set the pace. µs are CPU of that process for each call, at half load:\n"
    )
    yield (
        "| call | direct/s | nginx/s | proxy/s | S3 and Kafka stopped/s | captured |"
        " nginx µs | proxy µs | S3 and Kafka stopped µs |"
    )
    yield "|---" * 9 + "|"
    for name, line in lines.items():
        running, stopped = (_of(line, way, "saturation", "rate") for way in _WAYS[2:])
        cells = [
            name,
            *(_rate(line, way) for way in _WAYS[:3]),
            f"{_rate(line, _WAYS[3])}{_missed(stopped < running * (1 - CHANGED))}",
            _captured(line["proxy"]["saturation"]),
            *(f"{_of(line, way, 'half', 'cpu'):,.0f}" for way in _WAYS[1:]),
        ]
        yield f"| {' | '.join(cells)} |"


def _stripping(
    stripping: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]],
) -> Iterator[str]:
    yield (
        "With `strip_metadata`, again at a half busy core, beside a proxy that sends the same calls"
        " on as they come; µs are CPU of both its processes for each call:\n"
    )
    yield "| call | a second | stripped, p50 | p99 | µs | as they come, p50 | p99 | µs |"
    yield "|---" * 8 + "|"
    for name, rounds in stripping.items():
        cells = [f"{median(figures['stripped']['rate'] for figures in rounds):,.0f}"]
        for way in ("stripped", "whole"):
            p50, p99, cpu = (
                median(figures[way][figure] for figures in rounds)
                for figure in ("p50", "p99", "cpu")
            )
            cells += [f"{p50:.2f}", f"{p99:.2f}", f"{cpu:,.0f}"]
        yield f"| {' | '.join((name, *cells))} |"


def _overload(overload: Mapping[str, Any]) -> str:
    moved = (overload["most"] - overload["least"]) / 2
    tenths = ", ".join(f"{size:.0f}" for size in overload["tenths"])
    captures = overload["captures"]
    return (
        f"{overload['minutes']:g} minutes of overload with S3 stopped ({overload['workload']},"
        f" {overload['rate']:,.0f} calls/s, {overload['failed']:,.0f} failed,"
        f" p99 {overload['p99']:.0f} ms):"
        f" the proxy's memory, MiB, over the run: {tenths}. After the first tenth, in which the"
        f" budget fills, it moves ± {moved:.0f} MiB{_missed(moved > MOVED)}. Of"
        f" {captures['seen']:,.0f} exchanges {captures['dropped']:,.0f} were dropped, and counted."
    )


def _of(line: Line, way: str, what: str, figure: str) -> float:
    """Return the median of the rounds."""
    return median(figures[figure] for figures in line[way][what])


def _rate(line: Line, way: str) -> str:
    least = "" if _of(line, way, "saturation", "share of a core") >= _FULL else "≥ "
    return f"{least}{_of(line, way, 'saturation', 'rate'):,.0f}"


def _beside(stopped: float, running: float) -> str:
    return f"{stopped:.2f}{_missed(stopped > running * (1 + CHANGED))}"


def _captured(rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return the share that was not dropped: on Kafka already, or waiting."""
    seen = sum(figures["captures"]["seen"] for figures in rounds)
    dropped = sum(figures["captures"]["dropped"] for figures in rounds)
    return f"{1 - dropped / seen:.0%}" if seen else "none"


def _missed(missed: bool) -> str:
    return " **no**" if missed else ""


if __name__ == "__main__":
    main()
