"""`python -m benchmarks.erasure.report`: the results as a page of the docs.

Until versions were listed ahead, their listing was a part of the delete step: results of then,
whose runs do not say `listed_ahead`, are told as they were told then.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.pages import Bar, write_bars, write_figures

from .floors import LISTED

RESULTS: Final = Path(__file__).with_name("results.json")
TITLE: Final = "Figures: erasures"
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
Results = Mapping[str, Any]
_BUCKETS: Final = {"objects": "unversioned", "versioned": "versioned"}
_Line: TypeAlias = tuple[str, tuple[str, ...], float | None]
# What, a rate of each round, its ratio to the floor, and the bar.
_Row: TypeAlias = tuple[str, list[float], float | None, float | None]
_LINES: Final[tuple[_Line, ...]] = (
    ("the delete step", ("delete",), DELETED),
    ("the whole erasure", (), WHOLE),
)
_LINES_BEFORE: Final[tuple[_Line, ...]] = (
    ("the delete step", ("delete", "-list"), DELETED),
    ("with listing and verification", ("delete", "verify"), WHOLE),
    ("the whole erasure, with rows", (), None),
)


def main() -> None:
    """Write the page of figures and the table of bars."""
    results = json.loads(RESULTS.read_text())
    write_figures("erasure", TITLE, format_section(results))
    write_bars("erasure", list_bars(results))


def format_section(results: Results) -> str:
    """Return all of it, in Markdown."""
    tables = (
        _format_machines,
        _format_inferences,
        _format_objects,
        _format_steps,
        _format_memory,
        _format_questions,
    )
    return "\n\n".join(
        "\n".join(lines).rstrip() for table in tables if (lines := [*table(results)])
    )


def _format_machines(results: Results) -> Iterator[str]:
    """Yield what was measured on what, run by run."""
    runs = results["runs"]
    for run in [run for at, run in enumerate(runs.values()) if run not in [*runs.values()][:at]]:
        parts = ", ".join(name for part, name in _PARTS.items() if runs.get(part) == run)
        machine, sizes = run["machine"], run["sizes"]
        settings = ", ".join(f"`{name}={value}`" for name, value in run["settings"].items())
        suffix = "; MinIO's data in memory" if run.get("in_memory") else ""
        yield (
            f"{parts[0].upper()}{parts[1:]}: {machine['processor']}, {machine['cores']} cores,"
            f" {machine['memory GiB']} GiB, Python {machine['python']}; load before the run"
            f" {machine['load before']}; {_format_rounds(sizes['rounds'])} of"
            f" {sizes['row_sample']:,} inferences without objects and of {sizes['sample']:,} with"
            f" three each; {f'settings {settings}' if settings else 'default settings'}{suffix}.\n"
        )


def _format_rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count} rounds"


def list_bars(results: Results) -> Iterator[Bar]:
    """Yield each figure that is held to a bar."""
    for what, rates, _, bar in _list_inferences(results):
        if bar:
            rate = median(rates)
            yield Bar(f"{what}, inferences/s", f"≥ {bar:,g}", f"{rate:,.0f}", rate >= bar)
    for what, _, ratio, bar in _list_objects(results):
        if bar and ratio:
            yield Bar(f"{what}, of S3 by itself", f"≥ {bar:g}", f"{ratio:.2f}", ratio >= bar)
    for kind, _, _, times in _list_questions(results):
        what = f"questions during an erasure, p99 ({kind}), times of without"
        yield Bar(what, f"< {TIMES:g}", f"{times:.2f}", times < TIMES)


def _format_inferences(results: Results) -> Iterator[str]:
    rows = [*_list_inferences(results)]
    if "rows" in results:
        yield from _format_head("inferences", "inferences/s", "of plain DELETE", "bar")
    for what, rates, ratio, bar in rows:
        yield _format_row(
            what, _format_rate(rates), _format_ratio(ratio), _format_bar(median(rates), bar)
        )


def _list_inferences(results: Results) -> Iterator[_Row]:
    if rows := results.get("rows"):
        rounds = rows["rounds"]
        yield "plain DELETE of the same rows", [figures["floor"] for figures in rounds], None, None
        for what in ("request", "policy"):
            ratio = median(figures[what] / figures["floor"] for figures in rounds)
            yield f"one by one, by a {what}", [figures[what] for figures in rounds], ratio, ROWS
        large = rows["large"]
        yield f"one by one, {large['inferences']:,}", [_find_rate(large)], None, ROWS
    if whole := results.get("whole"):
        dropped = sum(figures["partitions"] for figures in whole)
        yield (
            f"whole partitions ({dropped} dropped)",
            [_find_rate(figures) for figures in whole],
            None,
            None,
        )


def _format_objects(results: Results) -> Iterator[str]:
    rows = [*_list_objects(results)]
    if rows:
        yield from _format_head("objects", "objects/s", "of S3 by itself", "bar")
    for what, rates, ratio, bar in rows:
        yield _format_row(
            what, _format_rate(rates), _format_ratio(ratio), _format_bar(ratio or 0, bar)
        )


def _list_objects(results: Results) -> Iterator[_Row]:
    for part, name in _BUCKETS.items():
        if part in results:
            ahead = results["runs"][part].get("listed_ahead")
            lines = _LINES if ahead else _LINES_BEFORE
            yield from _compare_bucket(results[part], name, lines)


def _compare_bucket(results: Results, name: str, lines: Sequence[_Line]) -> Iterator[_Row]:
    """Yield the floor and each line of the rounds, then those of the large erasure."""
    rounds, large = results["rounds"], results["large"]
    client = max((c for c in _CLIENTS if c in rounds[0]), key=lambda c: _find_median(rounds, c))
    alone = [figures[client] for figures in rounds]
    by_itself = f"S3's bulk delete by itself ({client})"
    yield f"{name}: {by_itself}", alone, None, None
    for what, steps, bar in lines:
        rates = [_find_rate(figures["erased"], "objects", *steps) for figures in rounds]
        ratio = median(rate / floor for rate, floor in zip(rates, alone, strict=True))
        yield f"{name}: {what}", rates, ratio, bar
    yield from _compare_lists(name, [(figures["erased"], figures, client) for figures in rounds])
    # older results lack it: they compare with the rounds
    floor = results.get("floor", median(alone))
    name = f"{name}: {large['objects']:,}"
    if "floor" in results:
        yield f"{name}, {by_itself}", [floor], None, None
    for what, steps, bar in lines:
        rate = _find_rate(large, "objects", *steps)
        yield f"{name}, {what}", [rate], rate / floor, bar
    yield from _compare_lists(name, [(large, results, "floor")], ", ")


def _compare_lists(
    name: str, erasures: Sequence[tuple[Mapping[str, Any], Results, str]], between: str = ": "
) -> Iterator[_Row]:
    """Yield the floor with the lists that deleting versions needs, and what reaches how much of it:
    of erasures, each with the rates of its floor and the name of the deleting client."""
    if not all(LISTED in rates for _, rates, _ in erasures):
        return
    floors = [1 / (1 / rates[LISTED] + 1 / rates[client]) for _, rates, client in erasures]
    yield f"{name}{between}S3's lists and bulk deletes by themselves", floors, None, None
    whole = [_find_rate(erased, "objects") for erased, _, _ in erasures]
    ratio = median(rate / floor for rate, floor in zip(whole, floors, strict=True))
    yield f"{name}{between}the whole erasure beside both", whole, ratio, WHOLE


def _format_steps(results: Results) -> Iterator[str]:
    """Yield inferences a second of each step by itself, of the large ones."""
    yield "Inferences a second of each step by itself; µs of CPU of each process an inference:\n"
    yield from _format_head("erasure", "in all", *_STEPS, *(f"{name} µs" for name in _PROCESSES))
    for name, large in _list_large(results):
        spent = large["steps"]
        rates = [large["inferences"] / spent[step] if spent.get(step) else 0 for step in _STEPS]
        yield _format_row(
            name,
            f"{_find_rate(large):,.0f}",
            *(f"{rate:,.0f}" if rate else "" for rate in rates),
            *(f"{large['cpu'][process]:,.0f}" for process in _PROCESSES),
        )


def _format_memory(results: Results) -> Iterator[str]:
    """Yield the memory of the retention process, from when it is warm."""
    yield "Resident MiB of the retention process:\n"
    yield from _format_head("erasure", "at a tenth", "half", "the end", "most")
    for name, large in _list_large(results):
        looks = large["resident"]
        at = [looks[int((len(looks) - 1) * share)] for share in (0.1, 0.5, 1.0)]
        yield _format_row(name, *(f"{mib:.0f}" for mib in (*at, max(looks))))


def _format_questions(results: Results) -> Iterator[str]:
    rounds = results.get("beside")
    if not rounds:
        return
    rate = median(figures["rate"] for figures in rounds)
    events = results["runs"]["beside"]["sizes"]["events"]
    yield (
        f"Questions about another model, {events} events/s coming in; the erasure"
        f" beside them does {rate:,.0f} inferences/s. p99 in milliseconds:\n"
    )
    yield from _format_head("question", "without", "during an erasure", "times", "bar")
    for kind, quiet, busy, times in _list_questions(results):
        cell = f"< {TIMES:g}" + ("" if times < TIMES else " **no**")
        yield _format_row(kind, f"{quiet:.1f}", f"{busy:.1f}", f"{times:.2f}", cell)


def _list_questions(results: Results) -> Iterator[tuple[str, float, float, float]]:
    """Yield for each kind of question p99 without an erasure and during one, and their ratio."""
    rounds = results.get("beside", [])
    for kind in ("page", "count", "look-up", "all") if rounds else ():
        quiet, busy = ([figures[when][kind] for figures in rounds] for when in ("quiet", "busy"))
        times = median(b / q for b, q in zip(busy, quiet, strict=True))
        yield kind, median(quiet), median(busy), times


def _list_large(results: Results) -> Iterator[tuple[str, Results]]:
    for part, name in {"rows": "rows", **_BUCKETS}.items():
        if part in results:
            large = results[part]["large"]
            objects = f", {large['objects']:,} objects, {name}" if large["objects"] else ""
            yield f"{large['inferences']:,} inferences{objects}", large
    if whole := results.get("whole"):
        slowest = min(whole, key=_find_rate)
        yield f"{slowest['inferences']:,} inferences in whole partitions", slowest


def _find_rate(figures: Results, what: str = "inferences", *steps: str) -> float:
    """Return the rate a second: of these steps, less those with a minus; where none is named, of
    all it took."""
    if not steps:
        return float(figures[what] / figures["seconds"])
    spent = figures["steps"]
    less = sum(spent.get(step[1:], 0) for step in steps if step.startswith("-"))
    return float(figures[what] / (sum(spent.get(step, 0) for step in steps) - less))


def _find_median(rounds: Sequence[Results], name: str) -> float:
    return median(float(figures[name]) for figures in rounds)


def _format_rate(rates: Sequence[float]) -> str:
    """The median, and the rounds where there are several."""
    rounds = ", ".join(f"{rate:,.0f}" for rate in rates)
    return f"{median(rates):,.0f}" + (f" ({rounds})" if len(rates) > 1 else "")


def _format_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _format_bar(value: float, bar: float | None) -> str:
    if bar is None:
        return ""
    return f"≥ {bar:,g}" + ("" if value >= bar else " **no**")


def _format_head(*names: str) -> Iterator[str]:
    yield _format_row(*names)
    yield "|---" * len(names) + "|"


def _format_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
