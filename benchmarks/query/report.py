"""`python -m benchmarks.query.report`: the results as a section of docs/benchmarks.md, and a plot.

The section lies between two marks and is written anew; the plot is an SVG beside the page.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .plot import plotted

_RESULTS = Path(__file__).with_name("results")
_DOCS = Path(__file__).parents[2] / "docs"
_BEGIN, _END = "<!-- figures of bench-query -->", "<!-- end of the figures -->"
_PLOT = "![Each question from its median to its 99th percentile](benchmarks-query.svg)"
# Fewer runs are said: the 99th percentile of few is the slowest.
_RUNS = 50
Line = Mapping[str, Any]
# Milliseconds at the 99th percentile that each kind of line is held to.
BARS = {"page": 200, "count": 1000, "empty": 1000, "look-up": 50, "aggregate": 2000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="10m")
    size = parser.parse_args().size
    found = json.loads((_RESULTS / f"{size}.json").read_text())
    page = _DOCS / "benchmarks.md"
    before, rest = page.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    page.write_text(f"{before}{_BEGIN}\n\n{section(found)}\n\n{_END}{after}")
    (_DOCS / "benchmarks-query.svg").write_text(plotted(found))


def section(found: Mapping[str, Any]) -> str:
    """All tables, in Markdown."""
    unit = next(line for line in found["look-ups"] if line["kind"] == "unit")
    parts = [_machine(found["machine"]), _PLOT, _main_table(found, unit["median"])]
    parts += _beside(found)
    return "\n\n".join(part for part in parts if part)


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['inferences']:,} inferences in {machine['partitions']} partitions,"
        f" {machine['bytes'] / 2**30:.0f} GiB; {machine['processor']}, {machine['cores']} cores,"
        f" {machine['memory GiB']} GiB, Postgres {machine['postgres']},"
        f" Python {machine['python']}; load before the run {machine['load before']}."
    )


def _main_table(found: Mapping[str, Any], unit: float) -> str:
    lines = [
        line for part in ("look-ups", "matrix", "aggregates", "mix") for line in found.get(part, ())
    ]
    fed = _by_name(found.get("ingest", ()))
    head = (
        "| question | | median ms | p99 ms | bar | of a look-up by key | under ingest, p99 | rows |"
    )
    return "\n".join([head, "|---" * 8 + "|", *(_row(line, fed, unit) for line in lines)])


def _row(line: Line, fed: Mapping[tuple[str, str], Line], unit: float) -> str:
    bar = BARS.get(line["kind"])
    beside = fed.get((line["name"], line["kind"]))
    kept = "" if bar is None else f"< {bar}" + ("" if line["p99"] < bar else " **no**")
    cells = [
        *(line["name"], line["kind"], _ms(line["median"]), _ms(line["p99"]) + _said(line), kept),
        f"{line['median'] / unit:,.0f}",
        "" if beside is None else _ms(beside["p99"]),
        f"{line['rows']:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _said(line: Line) -> str:
    """What a figure does not show: runs whose time was over, and that there were few."""
    said = []
    # figures of before told them not apart: of these only pages answer a part
    pages = line["kind"] in {"page", "empty", "cold"}
    if part := line.get("part", line["cut"] if pages else 0):
        said.append(f"{part:.0%} searched back to")
    if refused := line.get("refused", 0 if pages else line["cut"]):
        said.append(f"{refused:.0%} refused: out of time")
    if line["runs"] < _RUNS:
        said.append(f"{line['runs']} runs")
    return f" ({', '.join(said)})" if said else ""


def _beside(found: Mapping[str, Any]) -> Iterable[str]:
    if rate := found.get("events a second beside"):
        yield f"Under ingest: {rate:.0f} events/s were written beside it."
    if lines := found.get("erasure"):
        said = "Counts while a tenth of all is marked for erasure"
        yield _small(said, lines, _by_name(found.get("matrix", ())), "without marks")
    if lines := found.get("cold"):
        emptied = "and the disk's cache was emptied" if found.get("cold of the disk") else ""
        yield _small(f"The first page after a restart {emptied}".strip(), lines, {}, "")
    if lines := found.get("partitions"):
        yield _small("1M inferences in 60 partitions and more", lines, {}, "")
    if lines := found.get("growth"):
        yield _small("1M inferences", lines, _by_name(found.get("matrix", ())), "10M")
    if slow := found.get("slow of the mix"):
        shown = "\n".join(f"- {ms} ms: `{text}`" for text, ms, *_ in slow[:20])
        yield f"Of the generated filters took longer than 200 ms ({len(slow)}):\n\n{shown}"


def _small(title: str, lines: Sequence[Line], other: Mapping[Any, Line], what: str) -> str:
    more = f" {what}, median ms |" if other else ""
    rows = [f"{title}:", "", f"| question | median ms | p99 ms |{more}"]
    rows.append("|---" * (4 if other else 3) + "|")
    for line in lines:
        beside = other.get((line["name"], line["kind"]))
        cell = f" {_ms(beside['median']) if beside else ''} |" if other else ""
        rows.append(
            f"| {line['name']} | {_ms(line['median'])} | {_ms(line['p99'])}{_said(line)} |{cell}"
        )
    return "\n".join(rows)


def _by_name(lines: Iterable[Line]) -> dict[tuple[str, str], Line]:
    return {(line["name"], line["kind"]): line for line in lines}


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
