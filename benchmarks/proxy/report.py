"""The section of docs/benchmarks.md, from what was measured, between two marks of the page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

_RESULTS = Path(__file__).with_name("results.json")
_PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures of bench-proxy -->", "<!-- end of the proxy -->"
_WAYS: Final = ("direct", "nginx", "proxy", "proxy, S3 and Kafka stopped")
# What it is held to: milliseconds added at the median, times of nginx's p99, share that stopping
# S3 and Kafka may change, MiB that memory may move either way.
ADDED, TIMES, CHANGED, MOVED = 1.5, 2.0, 0.10, 20.0
# Below it something else than what is measured set the check.
_FULL: Final = 0.9
Line = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]


def main() -> None:
    found = json.loads(_RESULTS.read_text())
    before, rest = _PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{section(found)}\n\n{_END}{after}")


def section(found: Mapping[str, Any]) -> str:
    """All of it, in Markdown."""
    lines = found["lines"]
    parts = [_machine(found), "\n".join(_half(lines)), "\n".join(_saturation(lines))]
    if stripping := found.get("stripping"):
        parts.append("\n".join(_stripping(stripping)))
    if overload := found.get("overload"):
        parts.append(_overload(overload))
    return "\n\n".join(parts)


def _machine(found: Mapping[str, Any]) -> str:
    machine, line = found["machine"], next(iter(found["lines"].values()))
    settings = ", ".join(f"`{name}={value}`" for name, value in found["settings"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory GiB']} GiB,"
        f" Python {machine['python']}; load before the run {machine['load before']};"
        f" medians of {len(line['proxy']['half'])} rounds of {found['seconds']:g} s a measurement;"
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
        times = {way: [_of(line, way, "half", each) for each in ("p50", "p99")] for way in _WAYS}
        direct, nginx, proxy, stopped = (times[way] for way in _WAYS)
        added, ratio = proxy[0] - direct[0], proxy[1] / nginx[1]
        cells = [
            *(name, f"{_of(line, 'proxy', 'half', 'rate'):,.0f}"),
            *(f"{each:.2f}" for each in (*direct, *nginx, *proxy)),
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


def _stripping(found: Mapping[str, Sequence[Mapping[str, Mapping[str, float]]]]) -> Iterator[str]:
    yield (
        "With `strip_metadata`, again at a half busy core, beside a proxy that sends the same calls"
        " on as they come; µs are CPU of both its processes for each call:\n"
    )
    yield "| call | a second | stripped, p50 | p99 | µs | as they come, p50 | p99 | µs |"
    yield "|---" * 8 + "|"
    for name, rounds in found.items():
        cells = [f"{median(each['stripped']['rate'] for each in rounds):,.0f}"]
        for way in ("stripped", "whole"):
            p50, p99, cpu = (
                median(each[way][figure] for each in rounds) for figure in ("p50", "p99", "cpu")
            )
            cells += [f"{p50:.2f}", f"{p99:.2f}", f"{cpu:,.0f}"]
        yield f"| {' | '.join((name, *cells))} |"


def _overload(found: Mapping[str, Any]) -> str:
    moved = (found["most"] - found["least"]) / 2
    tenths = ", ".join(f"{size:.0f}" for size in found["tenths"])
    captures = found["captures"]
    return (
        f"{found['minutes']:g} minutes of overload with S3 stopped ({found['workload']},"
        f" {found['rate']:,.0f} calls/s, {found['failed']:,.0f} failed, p99 {found['p99']:.0f} ms):"
        f" the proxy's memory, MiB, over the run: {tenths}. After the first tenth, in which the"
        f" budget fills, it moves ± {moved:.0f} MiB{_missed(moved > MOVED)}. Of"
        f" {captures['seen']:,.0f} exchanges {captures['dropped']:,.0f} were dropped, and counted."
    )


def _of(line: Line, way: str, what: str, figure: str) -> float:
    """The median of the rounds."""
    return median(each[figure] for each in line[way][what])


def _rate(line: Line, way: str) -> str:
    least = "" if _of(line, way, "saturation", "share of a core") >= _FULL else "≥ "
    return f"{least}{_of(line, way, 'saturation', 'rate'):,.0f}"


def _beside(stopped: float, running: float) -> str:
    return f"{stopped:.2f}{_missed(stopped > running * (1 + CHANGED))}"


def _captured(rounds: Sequence[Mapping[str, Any]]) -> str:
    """The share that was not dropped: on Kafka already, or waiting."""
    seen = sum(each["captures"]["seen"] for each in rounds)
    dropped = sum(each["captures"]["dropped"] for each in rounds)
    return f"{1 - dropped / seen:.0%}" if seen else "none"


def _missed(missed: bool) -> str:
    return " **no**" if missed else ""


if __name__ == "__main__":
    main()
