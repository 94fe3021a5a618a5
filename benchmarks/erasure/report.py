"""The section of docs/benchmarks.md, from what was measured, between two marks of the page.

Until versions were listed ahead, their listing was a part of the delete step: results of then,
whose runs do not say `listed_ahead`, are told as they were told then.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

_RESULTS = Path(__file__).with_name("results.json")
_PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- figures of bench-erasure -->", "<!-- end of the erasure -->"
# What it is held to: inferences a second one by one; shares of what S3 deletes by itself, for the
# delete step and for all of it (listing, verification, rows; before `listed_ahead` without rows);
# times of what questions take without an erasure.
ROWS, DELETED, WHOLE, TIMES = 5_000, 0.8, 0.6, 2.0
_CLIENTS: Final = ("obstore", "minio-py")
_STEPS: Final = ("mark", "claim", "list", "delete", "verify", "forget")
_PARTS: Final = {
    "rows": "inferences without objects",
    "whole": "whole partitions",
    "beside": "questions",
    "objects": "objects without versions",
    "versioned": "objects with versions",
}
_PROCESSES: Final = ("retention", "postgres", "minio")
Found = Mapping[str, Any]


def main() -> None:
    """Write the section."""
    found = json.loads(_RESULTS.read_text())
    before, rest = _PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{section(found)}\n\n{_END}{after}")


def section(found: Found) -> str:
    """All of it, in Markdown."""
    tables = (_machines, _inferences, _objects, _steps, _memory, _beside)
    return "\n\n".join("\n".join(lines).rstrip() for table in tables if (lines := [*table(found)]))


def _machines(found: Found) -> Iterator[str]:
    """What was measured on what, run by run."""
    runs = found["runs"]
    for run in [run for at, run in enumerate(runs.values()) if run not in [*runs.values()][:at]]:
        parts = ", ".join(name for part, name in _PARTS.items() if runs.get(part) == run)
        machine, sizes = run["machine"], run["sizes"]
        settings = ", ".join(f"`{name}={value}`" for name, value in run["settings"].items())
        place = "; MinIO's data in memory" if run.get("in_memory") else ""
        yield (
            f"{parts[0].upper()}{parts[1:]}: {machine['processor']}, {machine['cores']} cores,"
            f" {machine['memory GiB']} GiB, Python {machine['python']}; load before the run"
            f" {machine['load before']}; {_rounds(sizes['rounds'])} of"
            f" {sizes['row_sample']:,} inferences without objects and of {sizes['sample']:,} with"
            f" three each; {f'settings {settings}' if settings else 'default settings'}{place}.\n"
        )


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count} rounds"


def _inferences(found: Found) -> Iterator[str]:
    if rows := found.get("rows"):
        yield from _head("inferences", "inferences/s", "of plain DELETE", "bar")
        rounds = rows["rounds"]
        yield _cells(
            "plain DELETE of the same rows", _rate([one["floor"] for one in rounds]), "", ""
        )
        for what in ("request", "policy"):
            rates = [one[what] for one in rounds]
            ratio = median(one[what] / one["floor"] for one in rounds)
            said = _bar(median(rates), ROWS)
            yield _cells(f"one by one, by a {what}", _rate(rates), f"{ratio:.2f}", said)
        large = _rate_of(rows["large"])
        name = f"one by one, {rows['large']['inferences']:,}"
        yield _cells(name, _rate([large]), "", _bar(large, ROWS))
    for whole in [found["whole"]] if "whole" in found else []:
        dropped = sum(one["partitions"] for one in whole)
        name = f"whole partitions ({dropped} dropped)"
        yield _cells(name, _rate([_rate_of(one) for one in whole]), "", "")


def _objects(found: Found) -> Iterator[str]:
    parts = [(part, name) for part, name in _BUCKETS.items() if part in found]
    if parts:
        yield from _head("objects", "objects/s", "of S3 by itself", "bar")
    for part, name in parts:
        rounds = found[part]["rounds"]
        lines = _LINES if found["runs"][part].get("listed_ahead") else _LINES_BEFORE
        client = max((c for c in _CLIENTS if c in rounds[0]), key=lambda c: _median(rounds, c))
        alone = [one[client] for one in rounds]
        yield _cells(f"{name}: S3's bulk delete by itself ({client})", _rate(alone), "", "")
        for what, steps, bar in lines:
            rates = [_rate_of(one["erased"], "objects", *steps) for one in rounds]
            ratio = median(rate / floor for rate, floor in zip(rates, alone, strict=True))
            yield _cells(f"{name}: {what}", _rate(rates), f"{ratio:.2f}", _bar(ratio, bar))
        large, floor = found[part]["large"], median(alone)
        if "floor" in found[part]:  # older results lack it: they compare with the rounds
            floor = found[part]["floor"]
            said = f"{name}: {large['objects']:,}, S3's bulk delete by itself ({client})"
            yield _cells(said, _rate([floor]), "", "")
        for what, steps, bar in lines:
            rate = _rate_of(large, "objects", *steps)
            ratio = rate / floor
            said = f"{name}: {large['objects']:,}, {what}"
            yield _cells(said, _rate([rate]), f"{ratio:.2f}", _bar(ratio, bar))


_BUCKETS: Final = {"objects": "unversioned", "versioned": "versioned"}
_Line: TypeAlias = tuple[str, tuple[str, ...], float | None]
_LINES: Final[tuple[_Line, ...]] = (
    ("the delete step", ("delete",), DELETED),
    ("the whole erasure", (), WHOLE),
)
_LINES_BEFORE: Final[tuple[_Line, ...]] = (
    ("the delete step", ("delete", "-list"), DELETED),
    ("with listing and verification", ("delete", "verify"), WHOLE),
    ("the whole erasure, with rows", (), None),
)


def _steps(found: Found) -> Iterator[str]:
    """Inferences a second of each step by itself, of the large ones."""
    yield "Inferences a second of each step by itself; µs of CPU of each process an inference:\n"
    yield from _head("erasure", "in all", *_STEPS, *(f"{name} µs" for name in _PROCESSES))
    for name, large in _large(found):
        spent = large["steps"]
        rates = [large["inferences"] / spent[step] if spent.get(step) else 0 for step in _STEPS]
        yield _cells(
            name,
            f"{_rate_of(large):,.0f}",
            *(f"{rate:,.0f}" if rate else "" for rate in rates),
            *(f"{large['cpu'][process]:,.0f}" for process in _PROCESSES),
        )


def _memory(found: Found) -> Iterator[str]:
    """Of the retention process, from when it is warm."""
    yield "Resident MiB of the retention process:\n"
    yield from _head("erasure", "at a tenth", "half", "the end", "most")
    for name, large in _large(found):
        looks = large["resident"]
        at = [looks[int((len(looks) - 1) * share)] for share in (0.1, 0.5, 1.0)]
        yield _cells(name, *(f"{mib:.0f}" for mib in (*at, max(looks))))


def _beside(found: Found) -> Iterator[str]:
    rounds = found.get("beside")
    if not rounds:
        return
    rate = median(one["rate"] for one in rounds)
    events = found["runs"]["beside"]["sizes"]["events"]
    yield (
        f"Questions about another model, {events} events/s coming in; the erasure"
        f" beside them does {rate:,.0f} inferences/s. p99 in milliseconds:\n"
    )
    yield from _head("question", "without", "during an erasure", "times", "bar")
    for kind in ("page", "count", "look-up", "all"):
        quiet, busy = ([one[when][kind] for one in rounds] for when in ("quiet", "busy"))
        times = median(b / q for b, q in zip(busy, quiet, strict=True))
        kept = f"< {TIMES:g}" + ("" if times < TIMES else " **no**")
        yield _cells(kind, f"{median(quiet):.1f}", f"{median(busy):.1f}", f"{times:.2f}", kept)


def _large(found: Found) -> Iterator[tuple[str, Found]]:
    for part, name in {"rows": "rows", **_BUCKETS}.items():
        if part in found:
            large = found[part]["large"]
            objects = f", {large['objects']:,} objects, {name}" if large["objects"] else ""
            yield f"{large['inferences']:,} inferences{objects}", large
    if whole := found.get("whole"):
        one = min(whole, key=_rate_of)
        yield f"{one['inferences']:,} inferences in whole partitions", one


def _rate_of(one: Found, what: str = "inferences", *steps: str) -> float:
    """A second: of these steps, less those with a minus; where none is named, of all it took."""
    if not steps:
        return float(one[what] / one["seconds"])
    spent = one["steps"]
    less = sum(spent.get(step[1:], 0) for step in steps if step.startswith("-"))
    return float(one[what] / (sum(spent.get(step, 0) for step in steps) - less))


def _median(rounds: Sequence[Found], name: str) -> float:
    return median(float(one[name]) for one in rounds)


def _rate(rates: Sequence[float]) -> str:
    """The median, and the rounds where there are several."""
    rounds = ", ".join(f"{rate:,.0f}" for rate in rates)
    return f"{median(rates):,.0f}" + (f" ({rounds})" if len(rates) > 1 else "")


def _bar(value: float, bar: float | None) -> str:
    if bar is None:
        return ""
    return f"≥ {bar:,g}" + ("" if value >= bar else " **no**")


def _head(*names: str) -> Iterator[str]:
    yield _cells(*names)
    yield "|---" * len(names) + "|"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
