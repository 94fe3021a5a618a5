"""The results as a table of bars and tables of figures."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.results import Bar, format_table, mark

# What it is held to: inferences a second one by one; shares of what S3 deletes by itself, for the
# delete step and for all of it (listing, verification, rows); times of what questions take without
# an erasure.
ROWS, DELETED, WHOLE, TIMES = 5_000, 0.8, 0.6, 2.0
_OBJECT_STEPS: Final = ("delete", "verify")
# What is timed of packed captures and of loose ones: group, name, steps of it, and how many times
# as fast packed ones have to be. One in each segment may take three times as long.
_PACKED: Final = (
    ("erased whole: delete and verify", "whole", "packed", _OBJECT_STEPS, 50),
    ("erased whole: all steps", "whole", "packed", (), 0),
    ("erased, one a segment: delete and verify", "single", "spread", _OBJECT_STEPS, 0.33),
    ("erased, one a segment: all steps", "single", "spread", (), 0.33),
    ("erased, all of one segment: delete and verify", "single", "batched", _OBJECT_STEPS, 1),
    ("erased, all of one segment: all steps", "single", "batched", (), 1),
    ("rebuilt", "rebuilt", "packed", (), 10),
)
_BUCKETS: Final = {"objects": "unversioned", "versioned": "versioned"}
Results = Mapping[str, Any]
# What, a rate of each round, its ratio to the floor, and the bar.
_Row: TypeAlias = tuple[str, list[float], float | None, float | None]


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
    yield from _list_packed(results.get("packed", []))


def format_figures(results: Results) -> Iterator[str]:
    """Yield what was measured and each table."""
    options = results["options"]
    yield (
        f"{options['rounds']} rounds of"
        f" {options['row_sample']:,} inferences without objects and of {options['sample']:,} with"
        f" three each; settings: {', '.join(options['set']) or 'default'}."
    )
    if rows := list(_list_inferences(results)):
        head = "inferences | inferences/s | of plain DELETE | bar"
        yield format_table(head, (_list_cells(*row, median(row[1])) for row in rows))
    if rows := list(_list_objects(results)):
        head = "objects | objects/s | of S3 by itself | bar"
        yield format_table(head, (_list_cells(*row, row[2] or 0) for row in rows))
    if beside := results.get("beside"):
        rate = median(figures["rate"] for figures in beside)
        yield (
            f"Questions about another model, {options['events']} events/s coming in; the erasure"
            f" beside them does {rate:,.0f} inferences/s. p99 in milliseconds:"
        )
        cells = (
            (*(kind, f"{quiet:.1f}", f"{busy:.1f}"), f"{ratio:.2f}{mark(ratio < TIMES)}")
            for kind, quiet, busy, ratio in _list_questions(results)
        )
        yield format_table(f"question | without | during it | times, < {TIMES:g}", cells)


def _list_inferences(results: Results) -> Iterator[_Row]:
    if rows := results.get("rows"):
        rounds, large = rows["rounds"], rows["large"]
        yield "plain DELETE of the same rows", [figures["floor"] for figures in rounds], None, None
        for what in ("request", "policy"):
            ratio = median(figures[what] / figures["floor"] for figures in rounds)
            yield f"one by one, by a {what}", [figures[what] for figures in rounds], ratio, ROWS
        yield f"one by one, {large['inferences']:,}", [_find_rate(large)], None, ROWS
    if whole := results.get("whole"):
        dropped = sum(figures["partitions"] for figures in whole)
        rates = [_find_rate(figures) for figures in whole]
        yield f"whole partitions ({dropped} dropped)", rates, None, None


def _list_objects(results: Results) -> Iterator[_Row]:
    for part, name in _BUCKETS.items():
        if part in results:
            rounds, large = results[part]["rounds"], results[part]["large"]
            yield from _compare(f"{name}: ", rounds)
            yield from _compare(f"{name}: {large['erased']['objects']:,}, ", [large])


def _compare(name: str, rounds: Sequence[Results]) -> Iterator[_Row]:
    """Yield the floor and what reaches how much of it; of a bucket with versions also beside both
    lists and deletes: who deletes versions must list them."""
    deletes, lists = ([each[what] for each in rounds] for what in ("deletes", "lists"))
    yield f"{name}S3's bulk delete by itself", deletes, None, None
    parts = [_find_rate(each["erased"], "objects", "delete") for each in rounds]
    whole = [_find_rate(each["erased"], "objects") for each in rounds]
    yield f"{name}the delete step", parts, _divide(parts, deletes), DELETED
    yield f"{name}the whole erasure", whole, _divide(whole, deletes), WHOLE
    if all(lists):
        both = [1 / (1 / rate + 1 / listed) for rate, listed in zip(deletes, lists, strict=True)]
        yield f"{name}S3's lists and bulk deletes by themselves", both, None, None
        yield f"{name}the whole erasure beside both", whole, _divide(whole, both), WHOLE


def _divide(rates: Sequence[float], floors: Sequence[float]) -> float:
    return median(rate / floor for rate, floor in zip(rates, floors, strict=True))


def _list_packed(rounds: Sequence[Results]) -> Iterator[Bar]:
    """Yield how many times as fast packed captures are as loose ones, and the median seconds."""
    for what, group, name, steps, bar in _PACKED if rounds else ():
        packed, loose = (
            [_sum_seconds(each[group][kind], steps) for each in rounds] for kind in (name, "loose")
        )
        times, count = _divide(loose, packed), rounds[0][group][name]["inferences"]
        result = f"{times:.3g} times as fast: {median(packed):.2f} s, loose {median(loose):.2f} s"
        yield Bar(f"{count:,} {what}", f"≥ {bar:g}" if bar else "", result, times >= bar)


def _sum_seconds(figures: Results, steps: Sequence[str]) -> float:
    return float(sum(figures["steps"][step] for step in steps) if steps else figures["seconds"])


def _list_questions(results: Results) -> Iterator[tuple[str, float, float, float]]:
    rounds = results.get("beside", [])
    for kind in ("page", "count", "look-up", "all") if rounds else ():
        quiet, busy = ([figures[when][kind] for figures in rounds] for when in ("quiet", "busy"))
        yield kind, median(quiet), median(busy), _divide(busy, quiet)


def _find_rate(erased: Results, what: str = "inferences", step: str = "") -> float:
    return float(erased[what] / (erased["steps"][step] if step else erased["seconds"]))


def _list_cells(
    what: str, rates: Sequence[float], ratio: float | None, bar: float | None, value: float
) -> Iterator[str]:
    """Yield the cells of a row: the median, and the rounds where there are several; `value` is
    held to the bar."""
    rounds = ", ".join(f"{rate:,.0f}" for rate in rates)
    yield what
    yield f"{median(rates):,.0f}" + (f" ({rounds})" if len(rates) > 1 else "")
    yield "" if ratio is None else f"{ratio:.2f}"
    yield "" if bar is None else f"≥ {bar:,g}{mark(value >= bar)}"
