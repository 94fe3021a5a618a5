"""The results as a table of bars and tables of figures."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from benchmarks.results import Bar, format_ms, format_table, mark

# Fewer runs are said: the 99th percentile of few is the slowest.
_RUNS = 50
Line = Mapping[str, Any]
# Milliseconds at the 99th percentile that each kind of line is held to.
BARS = {
    **{"page": 200, "count": 1000, "empty": 1000},
    **{"look-up": 50, "aggregate": 2000, "overview": 500},
}
_KINDS: Final = {
    "look-up": "a look-up by id",
    "page": "a page",
    "empty": "a page of nothing",
    "count": "a count by one filter",
    "aggregate": "an aggregate",
    "overview": "an overview of a model",
}


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
    parts = ("look-ups", "matrix", "aggregates", "mix")
    return [line for part in parts for line in results.get(part, ())]


def format_figures(results: Mapping[str, Any]) -> str:
    """Return the data set, and a line for each question."""
    machine = results["machine"]
    about = (
        f"{machine['inferences']:,} inferences in {machine['partitions']} partitions,"
        f" {machine['bytes'] / 2**30:.0f} GiB, Postgres {machine['postgres']}."
    )
    unit = next(line for line in results["look-ups"] if line["kind"] == "unit")["median"]
    head = "question | | median ms | p99 ms | bar | of a look-up by key | rows"
    table = format_table(head, (_list_cells(line, unit) for line in _list_lines(results)))
    return f"{about}\n\n{table}"


def _list_cells(line: Line, unit: float) -> Iterable[str]:
    yield from (line["name"], line["kind"], format_ms(line["median"]), _format_p99(line))
    bar = BARS.get(line["kind"])
    yield "" if bar is None else f"< {bar}{mark(line['p99'] < bar)}"
    yield f"{line['median'] / unit:,.0f}"
    yield f"{line['rows']:,.0f}"


def _format_p99(line: Line) -> str:
    """Return it with what it does not show: runs whose time was over, and that there were few."""
    remarks = []
    if line["part"]:
        remarks.append(f"{line['part']:.0%} searched back to")
    if line["refused"]:
        remarks.append(f"{line['refused']:.0%} refused: out of time")
    if line["runs"] < _RUNS:
        remarks.append(f"{line['runs']} runs")
    return format_ms(line["p99"]) + (f" ({', '.join(remarks)})" if remarks else "")
