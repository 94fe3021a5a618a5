"""`python -m benchmarks.query.report`: the results as a page of the docs, with a plot.

The plot is an SVG beside the page. The table of bars is in the page that explains the benchmarks.
The docs tell of one size: the results of another are printed, and the docs stay as they are.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import FIGURES, Bar, format_bars, write_bars, write_figures

from .plot import draw_plot

_RESULTS: Final = Path(__file__).with_name("results")
# The size that the docs tell of.
RESULTS: Final = _RESULTS / "10m.json"
TITLE: Final = "Figures: questions"
_PLOT = "![Each question from its median to its 99th percentile](query.svg)"
# Fewer runs are said: the 99th percentile of few is the slowest.
_RUNS = 50
Line = Mapping[str, Any]
# Milliseconds at the 99th percentile that each kind of line is held to.
BARS = {"page": 200, "count": 1000, "empty": 1000, "look-up": 50, "aggregate": 2000}
_PARTS = ("look-ups", "matrix", "aggregates", "mix")
_KINDS: Final = {
    "look-up": "a look-up by id",
    "page": "a page",
    "empty": "a page of nothing",
    "count": "a count by one filter",
    "aggregate": "an aggregate",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default=RESULTS.stem)
    results_file = _RESULTS / f"{parser.parse_args().size}.json"
    report(json.loads(results_file.read_text()), in_docs=results_file == RESULTS)


def report(results: Mapping[str, Any], *, in_docs: bool) -> None:
    """Print the bars and the figures, or write them into the docs."""
    if not in_docs:
        print(format_bars(list_bars(results)), format_section(results), sep="\n\n")
        return
    write_figures("query", TITLE, format_section(results))
    write_bars("query", list_bars(results))
    (FIGURES / "query.svg").write_text(draw_plot(results))


def list_bars(results: Mapping[str, Any]) -> Iterator[Bar]:
    """Yield for each kind of question how many meet the bar, at p99 and by their median."""
    for kind, name in _KINDS.items():
        lines = [line for line in _list_lines(results) if line["kind"] == kind]
        met, typical = (
            sum(line[figure] < BARS[kind] for line in lines) for figure in ("p99", "median")
        )
        result = f"{met} of {len(lines)} lines meet it; {typical} do by their median"
        if lines:
            yield Bar(name, f"p99 < {BARS[kind]:,} ms", result, met == len(lines))


def _list_lines(results: Mapping[str, Any]) -> list[Line]:
    return [line for part in _PARTS for line in results.get(part, ())]


def format_section(results: Mapping[str, Any]) -> str:
    """Return all tables, in Markdown."""
    unit = next(line for line in results["look-ups"] if line["kind"] == "unit")
    parts = [_machine(results["machine"]), _PLOT, _main_table(results, unit["median"])]
    parts += _format_comparisons(results)
    return "\n\n".join(part for part in parts if part)


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['inferences']:,} inferences in {machine['partitions']} partitions,"
        f" {machine['bytes'] / 2**30:.0f} GiB; {machine['processor']}, {machine['cores']} cores,"
        f" {machine['memory GiB']} GiB, Postgres {machine['postgres']},"
        f" Python {machine['python']}; load before the run {machine['load before']}."
    )


def _main_table(results: Mapping[str, Any], unit: float) -> str:
    lines = _list_lines(results)
    fed = _by_name(results.get("ingest", ()))
    head = (
        "| question | | median ms | p99 ms | bar | of a look-up by key | under ingest, p99 | rows |"
    )
    return "\n".join([head, "|---" * 8 + "|", *(_row(line, fed, unit) for line in lines)])


def _row(line: Line, fed: Mapping[tuple[str, str], Line], unit: float) -> str:
    bar = BARS.get(line["kind"])
    beside = fed.get((line["name"], line["kind"]))
    bar_cell = "" if bar is None else f"< {bar}" + ("" if line["p99"] < bar else " **no**")
    cells = [
        *(
            line["name"],
            line["kind"],
            _ms(line["median"]),
            _ms(line["p99"]) + _format_remarks(line),
            bar_cell,
        ),
        f"{line['median'] / unit:,.0f}",
        "" if beside is None else _ms(beside["p99"]),
        f"{line['rows']:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _format_remarks(line: Line) -> str:
    """Return what a figure does not show: runs whose time was over, and that there were few."""
    remarks = []
    # earlier figures did not tell them apart: of these only pages answer a part
    pages = line["kind"] in {"page", "empty", "cold"}
    if part := line.get("part", line["cut"] if pages else 0):
        remarks.append(f"{part:.0%} searched back to")
    if refused := line.get("refused", 0 if pages else line["cut"]):
        remarks.append(f"{refused:.0%} refused: out of time")
    if line["runs"] < _RUNS:
        remarks.append(f"{line['runs']} runs")
    return f" ({', '.join(remarks)})" if remarks else ""


def _format_comparisons(results: Mapping[str, Any]) -> Iterable[str]:
    if rate := results.get("events a second beside"):
        yield f"Under ingest: {rate:.0f} events/s were written beside it."
    if lines := results.get("erasure"):
        title = "Counts while a tenth of all is marked for erasure"
        yield _format_small_table(
            title, lines, _by_name(results.get("matrix", ())), "without marks"
        )
    if lines := results.get("cold"):
        emptied = "and the disk's cache was emptied" if results.get("cold of the disk") else ""
        yield _format_small_table(
            f"The first page after a restart {emptied}".strip(), lines, {}, ""
        )
    if lines := results.get("partitions"):
        yield _format_small_table("1M inferences in 60 partitions and more", lines, {}, "")
    if lines := results.get("growth"):
        yield _format_small_table(
            "1M inferences", lines, _by_name(results.get("matrix", ())), "10M"
        )
    if slow := results.get("slow of the mix"):
        listed = "\n".join(f"- {ms} ms: `{text}`" for text, ms, *_ in slow[:20])
        yield f"Of the generated filters took longer than 200 ms ({len(slow)}):\n\n{listed}"


def _format_small_table(
    title: str, lines: Sequence[Line], other: Mapping[Any, Line], what: str
) -> str:
    more = f" {what}, median ms |" if other else ""
    rows = [f"{title}:", "", f"| question | median ms | p99 ms |{more}"]
    rows.append("|---" * (4 if other else 3) + "|")
    for line in lines:
        beside = other.get((line["name"], line["kind"]))
        cell = f" {_ms(beside['median']) if beside else ''} |" if other else ""
        p99 = f"{_ms(line['p99'])}{_format_remarks(line)}"
        rows.append(f"| {line['name']} | {_ms(line['median'])} | {p99} |{cell}")
    return "\n".join(rows)


def _by_name(lines: Iterable[Line]) -> dict[tuple[str, str], Line]:
    return {(line["name"], line["kind"]): line for line in lines}


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
