"""What all benchmarks share: the machine, tables in Markdown, and where raw results are written.

Raw results go to `build/benchmarks/<name>.json`, which git ignores. Bars and tables are printed,
to be pasted into docs/explanation/benchmarks.md.
"""

import argparse
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_FOLDER: Final = Path(__file__).parents[1] / "build" / "benchmarks"


class Bar(NamedTuple):
    """A bar, the figure that is held to it, and whether it is met."""

    what: str
    bar: str
    result: str
    is_met: bool


def add_results_option(parser: argparse.ArgumentParser, name: str) -> None:
    """Add `--results`: where the raw results of benchmark `name` go."""
    path = _FOLDER / f"{name}.json"
    parser.add_argument("--results", type=Path, default=path, help="the file of raw results")


def deliver(path: Path, results: Mapping[str, Any], *report: str) -> None:
    """Write raw results, and print what they come to; `machine` is among them."""
    machine = results["machine"]
    described = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory GiB']} GiB,"
        f" Python {machine['python']}; load before the run {machine['load before']}."
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    print("", described, *report, f"Raw results: {path}", sep="\n\n", flush=True)


def describe_machine() -> dict[str, Any]:
    """Return cores, processor, memory, load and Python of this machine."""
    model = ""
    if (cpus := Path("/proc/cpuinfo")).exists():
        lines = cpus.read_text().splitlines()
        model = next((line.split(":")[1] for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "processor": model.strip() or platform.processor(),
        "memory GiB": round(memory),
        "load before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def format_bars(bars: Iterable[Bar]) -> str:
    """Return the table of bars."""
    rows = ((what, bar, result + mark(is_met)) for what, bar, result, is_met in bars)
    return format_table("what | bar | result", rows)


def format_table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown. `head`: the names of its columns, between pipes."""
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def mark(is_met: bool) -> str:
    """Return what stands behind a figure that misses its bar."""
    return "" if is_met else " **no**"


def format_ms(milliseconds: float) -> str:
    """Return milliseconds, with a decimal if they are few."""
    return f"{milliseconds:,.1f}" if milliseconds < 10 else f"{milliseconds:,.0f}"


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank: of fewer than a hundred the 99th is the last; of nothing 0."""
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0
