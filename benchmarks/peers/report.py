"""`python -m benchmarks.peers.report`: the results as a page of the docs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import write_figures

RESULTS: Final = Path(__file__).with_name("results.json")
TITLE: Final = "Figures: beside JSONB and MLflow"


def main() -> None:
    """Write the page of figures."""
    write_figures("peers", TITLE, format_section(json.loads(RESULTS.read_text())))


def format_section(results: Mapping[str, Any]) -> str:
    """Both tables, in Markdown."""
    jsonb, mlflow = results["jsonb"], results["mlflow"]
    return "\n\n".join(
        [
            _machine(results["machine"]),
            _size(jsonb, "the table of documents with its indexes"),
            "\n".join(_table(jsonb, "JSONB and GIN")),
            _size(mlflow, f"the database of MLflow {mlflow['version']}"),
            "\n".join(_table(mlflow, "MLflow")),
        ]
    )


def _machine(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory GiB']} GiB,"
        f" Postgres {machine['postgres']}, Python {machine['python']};"
        f" load before the run {machine['load before']}."
    )


def _size(part: Mapping[str, Any], what: str) -> str:
    ours, theirs = (part[key] / 2**30 for key in ("bytes", "bytes of the peer"))
    return (
        f"{part['inferences']:,} inferences: ours take {ours:.1f} GiB, {what} {theirs:.1f} GiB."
        " Milliseconds; the last column is the peer's median over ours."
    )


def _table(part: Mapping[str, Any], peer: str) -> Iterator[str]:
    yield f"| question | | rows | ours, median | p99 | {peer}, median | p99 | of ours |"
    yield "|---" * 8 + "|"
    for line in part["lines"]:
        yield f"| {' | '.join(_cells(line))} |"


def _cells(line: Mapping[str, Any]) -> list[str]:
    head = [line["question"], line["kind"]]
    if "cannot" in line:
        return [*head, "", "", "", f"cannot: {line['cannot']}", "", ""]
    ours, theirs = line["ours"], line["theirs"]
    times = [_ms(of[what]) for of in (ours, theirs) for what in ("median", "p99")]
    return [*head, f"{ours['rows']:,.0f}", *times, _ratio(theirs["median"] / ours["median"])]


def _ms(value: float) -> str:
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
