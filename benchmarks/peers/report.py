"""The tables of docs/benchmarks.md, from what was measured, between two marks of the page."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).with_name("results.json")
_DOCS = Path(__file__).parents[2] / "docs"
_BEGIN, _END = "<!-- figures of bench-peers -->", "<!-- end of the peers -->"


def main() -> None:
    found = json.loads(_RESULTS.read_text())
    page = _DOCS / "benchmarks.md"
    before, rest = page.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    page.write_text(f"{before}{_BEGIN}\n\n{section(found)}\n\n{_END}{after}")


def section(found: Mapping[str, Any]) -> str:
    """Both tables, in Markdown."""
    jsonb, mlflow = found["jsonb"], found["mlflow"]
    return "\n\n".join(
        [
            _machine(found["machine"]),
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
