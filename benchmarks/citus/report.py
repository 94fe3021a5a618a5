"""`python -m benchmarks.citus.report`: the results as a page of the docs."""

import json
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.pages import write_figures

from .__main__ import RESULTS

TITLE: Final = "Figures: Citus"


def main() -> None:
    """Write the page of figures."""
    write_figures("citus", TITLE, format_section(json.loads(RESULTS.read_text())))


def format_section(results: Mapping[str, Any]) -> str:
    """Return what it ran on, and the table."""
    rows = [_format_row(*pair) for pair in results["lines"]]
    rows.append(_format_cells("written, inferences/s |", *results["written"]))
    head = "| question | | one node, median ms | three nodes, median ms | times |"
    return "\n".join([_format_machine(results), "", head, "|---" * 5 + "|", *rows])


def _format_machine(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    return (
        f"{results['inferences']:,} inferences, {results['shards']} shards; {machine['processor']},"
        f" {machine['cores']} cores, {machine['memory GiB']} GiB, load before the run"
        f" {machine['load before']}. `distribute` took {results['distributing']:.0f} s."
    )


def _format_row(single: Mapping[str, Any], cluster: Mapping[str, Any]) -> str:
    return _format_cells(
        f"{single['name']} | {single['kind']}", single["median"], cluster["median"]
    )


def _format_cells(what: str, single: float, cluster: float) -> str:
    cells = f"{_format_number(single)} | {_format_number(cluster)} | {cluster / single:.2f}"
    return f"| {what} | {cells} |"


def _format_number(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
