"""`python -m benchmarks.citus.report`: the results as a section of docs/benchmarks.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .__main__ import RESULTS

_PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures of bench-citus -->", "<!-- end of the figures of Citus -->"


def main() -> None:
    before, rest = _PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    found = json.loads(RESULTS.read_text())
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{section(found)}\n\n{_END}{after}")


def section(found: Mapping[str, Any]) -> str:
    """What it ran on, and the table."""
    rows = [_row(*pair) for pair in found["lines"]]
    rows.append(_cells("written, inferences/s |", *found["written"]))
    head = "| question | | one node, median ms | three nodes, median ms | times |"
    return "\n".join([_said(found), "", head, "|---" * 5 + "|", *rows])


def _said(found: Mapping[str, Any]) -> str:
    machine = found["machine"]
    return (
        f"{found['inferences']:,} inferences, {found['shards']} shards; {machine['processor']},"
        f" {machine['cores']} cores, {machine['memory GiB']} GiB, load before the run"
        f" {machine['load before']}. `distribute` took {found['distributing']:.0f} s."
    )


def _row(one: Mapping[str, Any], three: Mapping[str, Any]) -> str:
    return _cells(f"{one['name']} | {one['kind']}", one["median"], three["median"])


def _cells(what: str, one: float, three: float) -> str:
    return f"| {what} | {_number(one)} | {_number(three)} | {three / one:.2f} |"


def _number(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
