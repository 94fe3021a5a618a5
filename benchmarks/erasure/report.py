"""The results as a table of bars and tables of figures."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.results import Bar, format_table, mark

from .floors import LISTED

# What it is held to: inferences a second one by one; shares of what S3 deletes by itself, for the
# delete step and for all of it (listing, verification, rows); times of what questions take without
# an erasure.
ROWS, DELETED, WHOLE, TIMES = 5_000, 0.8, 0.6, 2.0
_STEPS: Final = ("mark", "claim", "list", "delete", "verify", "forget")
_PROCESSES: Final = ("retention", "postgres", "minio")
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


def format_figures(results: Results) -> Iterator[str]:
    """Yield what was measured and each table."""
    options = results["options"]
    yield (
        f"{options['rounds']} rounds of"
        f" {options['row_sample']:,} inferences without objects and of {options['sample']:,} with"
        f" three each; settings: {', '.join(options['set']) or 'default'}"
        f"{'; MinIO in memory' if options['in_memory'] else ''}."
    )
    if rows := list(_list_inferences(results)):
        head = "inferences | inferences/s | of plain DELETE | bar"
        yield format_table(head, (_list_cells(*row, median(row[1])) for row in rows))
    if rows := list(_list_objects(results)):
        head = "objects | objects/s | of S3 by itself | bar"
        yield format_table(head, (_list_cells(*row, row[2] or 0) for row in rows))
    large = list(_list_large(results))
    yield "Inferences a second of each step by itself; µs of CPU of each process an inference:"
    head = f"erasure | in all | {' | '.join(_STEPS)} | {' µs | '.join(_PROCESSES)} µs"
    yield format_table(head, (_list_steps(*each) for each in large))
    yield "Resident MiB of the retention process:"
    head = "erasure | at a tenth | half | the end | most"
    yield format_table(head, (_list_memory(name, each["resident"]) for name, each in large))
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
        if part not in results:
            continue
        objects = results[part]
        client, large = objects["client"], objects["large"]
        rounds = [(each["erased"], each[client], each.get(LISTED)) for each in objects["rounds"]]
        yield from _compare(f"{name}: ", client, rounds)
        last = (large, objects["floor"], objects.get(LISTED))
        yield from _compare(f"{name}: {large['objects']:,}, ", client, [last])


def _compare(
    name: str, client: str, erasures: Sequence[tuple[Results, float, float | None]]
) -> Iterator[_Row]:
    """Yield the floor and what reaches how much of it: of erasures, each with the rates at which
    the client deletes and, of a bucket with versions, lists: who deletes them must list them."""
    deletes = [rate for _, rate, _ in erasures]
    yield f"{name}S3's bulk delete by itself ({client})", deletes, None, None
    parts = [_find_rate(erased, "objects", "delete") for erased, _, _ in erasures]
    whole = [_find_rate(erased, "objects") for erased, _, _ in erasures]
    yield f"{name}the delete step", parts, _divide(parts, deletes), DELETED
    yield f"{name}the whole erasure", whole, _divide(whole, deletes), WHOLE
    if both := [1 / (1 / rate + 1 / listed) for _, rate, listed in erasures if listed]:
        yield f"{name}S3's lists and bulk deletes by themselves", both, None, None
        yield f"{name}the whole erasure beside both", whole, _divide(whole, both), WHOLE


def _divide(rates: Sequence[float], floors: Sequence[float]) -> float:
    return median(rate / floor for rate, floor in zip(rates, floors, strict=True))


def _list_questions(results: Results) -> Iterator[tuple[str, float, float, float]]:
    rounds = results.get("beside", [])
    for kind in ("page", "count", "look-up", "all") if rounds else ():
        quiet, busy = ([figures[when][kind] for figures in rounds] for when in ("quiet", "busy"))
        yield kind, median(quiet), median(busy), _divide(busy, quiet)


def _list_large(results: Results) -> Iterator[tuple[str, Results]]:
    for part, name in {"rows": "rows", **_BUCKETS}.items():
        if part in results:
            large = results[part]["large"]
            objects = f", {large['objects']:,} objects, {name}" if large["objects"] else ""
            yield f"{large['inferences']:,} inferences{objects}", large
    if whole := results.get("whole"):
        slowest = min(whole, key=_find_rate)
        yield f"{slowest['inferences']:,} inferences in whole partitions", slowest


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


def _list_steps(name: str, large: Results) -> Iterator[str]:
    yield from (name, f"{_find_rate(large):,.0f}")
    for step in _STEPS:
        spent = large["steps"].get(step)
        yield f"{large['inferences'] / spent:,.0f}" if spent else ""
    yield from (f"{large['cpu'][process]:,.0f}" for process in _PROCESSES)


def _list_memory(name: str, looks: Sequence[float]) -> Iterator[str]:
    at = [looks[int((len(looks) - 1) * share)] for share in (0.1, 0.5, 1.0)]
    yield from (name, *(f"{mib:.0f}" for mib in (*at, max(looks))))
