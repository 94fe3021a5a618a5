"""Runs an aggregation, from its names to its numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid
from inference_store.inference.events.event import received_at_of, uid_floor
from inference_store.query.deadline import Deadline
from inference_store.query.filters.typed import Kind
from inference_store.query.preparation import UnknownKeys
from inference_store.query.scan_range import HIGHEST, LOWEST

from .aggregation import Aggregation, Bound, ByHistogram, ByLabel, ByTime, Grouping, Measure
from .answer import Aggregated, MeasureResult, format_bin, format_measure, sort_value
from .bins import automatic
from .buckets import Unit, Width, floor, following
from .budget import Budget
from .exact import plain
from .first_values import first_values
from .functions import AGGREGATES, Sum
from .names import Names
from .operand import LABEL, Operand
from .part_collector import PartCollector, Target
from .partial import CountedBy, Counts, Key, PartialAggregate, PartialSums
from .rows import Dimension, InBins, InTime, Value
from .spans import starts_of


@dataclass(frozen=True, slots=True)
class Group:
    """One group. `raw`: the key that it is sorted by; `key`, `measures`: by their names."""

    raw: Key
    inferences: int
    key: Mapping[str, Any]
    measures: Mapping[str, Any]

    @property
    def as_json(self) -> Mapping[str, Any]:
        """The group for the JSON of the answer."""
        return {"key": self.key, "measures": self.measures}


def name_key(aggregation: Aggregation, dimensions: Sequence[Dimension], key: Key) -> dict[str, Any]:
    """Return a group's key by the names of its parts; None: there is no value."""
    parts = zip(aggregation.group_by, dimensions, key, strict=True)
    return {by.name: _format_value(dimension, value) for by, dimension, value in parts}


def _format_value(dimension: Dimension, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(dimension, InTime):
        return received_at_of(dimension.starts[value - 1])
    if isinstance(dimension, InBins):
        return format_bin(value, dimension.bounds)
    return plain(value)


def sort_groups(
    aggregation: Aggregation, groups: Sequence[Group]
) -> tuple[Sequence[Group], Sequence[Group]]:
    """Return the groups to show, in order, and the others. Raises Invalid for an unknown order."""
    ordered = sorted(groups, key=lambda group: [_last(part) for part in group.raw])
    name, largest_first = _order(aggregation)
    if name is not None:
        present = [group for group in ordered if _value(aggregation, group, name) is not None]
        absent = [group for group in ordered if _value(aggregation, group, name) is None]
        present.sort(key=lambda group: _value(aggregation, group, name), reverse=largest_first)
        ordered = present + absent
    return ordered[: aggregation.limit], ordered[aggregation.limit :]


def _last(value: Any) -> tuple[bool, Any]:
    """Return a sort key that puts None last."""
    return (value is None, 0 if value is None else value)


def _order(aggregation: Aggregation) -> tuple[str | None, bool]:
    """Return the name to order by, and whether the largest comes first.

    None: by the key, as for spans of time and bins. Empty: by the number of inferences.
    """
    if aggregation.order is not None:
        return aggregation.order.removeprefix("-"), aggregation.order.startswith("-")
    by_key = bool(aggregation.group_by) and isinstance(
        aggregation.group_by[0], ByTime | ByHistogram
    )
    return (None, False) if by_key else ("", True)


def _value(aggregation: Aggregation, group: Group, name: str) -> Any:
    if not name:
        return group.inferences
    for index, by in enumerate(aggregation.group_by):
        if by.name == name:
            return group.raw[index]
    for measure in aggregation.measures:
        if measure.name == name:
            return sort_value(measure, group.measures[name])
    names = [item.name for item in (*aggregation.group_by, *aggregation.measures)]
    message = f"there is no {name!r} to order by"
    raise Invalid(f"{message}.", faults=[Fault("order", message, names)])


# Percentiles of no more values are exact.
EXACT_VALUES: Final = 100_000


@dataclass(slots=True)
class _Run:
    connection: AsyncConnection
    targets: list[Target]
    aggregation: Aggregation
    deadline: Deadline
    names: Names
    budget: Budget = field(default_factory=Budget)
    operands: dict[str, Operand] = field(default_factory=dict)
    dimensions: list[Dimension] = field(default_factory=list)
    # by measure
    counts: dict[str, Counts] = field(default_factory=dict)
    bounds: dict[str, Sequence[Bound]] = field(default_factory=dict)
    approximate: set[str] = field(default_factory=set)
    # values that several measures need are read, and held, once
    read: dict[tuple[Operand, CountedBy], Counts] = field(default_factory=dict)

    def make_collector(self, dimensions: Sequence[Dimension] | None = None) -> PartCollector:
        """Return a collector by these dimensions, or by the requested ones."""
        by = self.dimensions if dimensions is None else dimensions
        return PartCollector(self.connection, self.targets, by, self.deadline, self.budget)


async def aggregate(
    connection: AsyncConnection,
    targets: Sequence[Target],
    aggregation: Aggregation,
    *,
    deadline: Deadline,
    unknown_keys: UnknownKeys = "refuse",
) -> Aggregated:
    """Return the groups and their measures.

    Raises Invalid, UnknownKey, ImpossibleComparison, TooManyGroups, OutOfTime.
    """
    names = Names([target.query.scan_range.model for target in targets], unknown_keys)
    run = _Run(connection, list(targets), aggregation, deadline, names)
    await _resolve(run)
    run.dimensions = [await _dimension(run, grouping) for grouping in aggregation.group_by]
    partial = await _collect(run)
    for measure in aggregation.measures:
        await _count(run, partial, measure)
    groups = [_group(run, partial, key) for key in _keys(run, partial)]
    page, others = sort_groups(aggregation, groups)
    return Aggregated(
        groups=[group.as_json for group in page],
        others={"groups": len(others), "inferences": sum(group.inferences for group in others)},
        approximate=bool(run.approximate),
        warnings=tuple(names.warnings),
    )


async def _resolve(run: _Run) -> None:
    for measure in run.aggregation.measures:
        if measure.of is None:
            continue
        likely = _narrow_kinds(measure.function.kinds, measure.bounds)
        operand = await run.names.operand(run.connection, measure.of, likely)
        if operand.kind not in measure.function.kinds:
            kinds = sorted(measure.function.kinds)
            message = f"{measure.function.name} is of a {' or '.join(kinds)}"
            detail = f"{message}; {measure.of.text!r} is a {operand.kind}."
            fault = Fault(measure.of.path, f"it is a {operand.kind}", kinds)
            raise ImpossibleComparison(detail, faults=[fault])
        run.operands[measure.name] = operand


async def _dimension(run: _Run, by: Grouping) -> Dimension:
    if isinstance(by, ByLabel):
        return Value(LABEL)
    if isinstance(by, ByTime):
        return await _in_time(run, by)
    kinds = AGGREGATES["histogram" if isinstance(by, ByHistogram) else "count"].kinds
    likely = _narrow_kinds(kinds, by.bounds if isinstance(by, ByHistogram) else None)
    operand = await run.names.operand(run.connection, by.of, likely)
    if operand.source == "prediction":
        message = "groups are of inferences: by `label`, a property or a metadata key"
        raise Invalid(f"{by.of.text!r}: {message}.", faults=[Fault(by.of.path, message)])
    if not isinstance(by, ByHistogram):
        return Value(operand)
    if operand.kind not in kinds:
        kind_names = sorted(kinds)
        message = (
            f"a histogram is of a {' or '.join(kind_names)}; {by.of.text!r} is a {operand.kind}"
        )
        raise ImpossibleComparison(f"{message}.", faults=[Fault(by.of.path, message, kind_names)])
    return InBins(operand, await _bounds(run, operand, by))


def _narrow_kinds(kinds: Collection[Kind], bounds: Sequence[Bound] | None) -> Collection[Kind]:
    """Return the kinds that the bounds allow; a key that nobody has sent is read as one of them."""
    if bounds is None:
        return kinds
    return {"timestamp"} if all(isinstance(bound, datetime) for bound in bounds) else {"number"}


async def _in_time(run: _Run, by: ByTime) -> InTime:
    """Return the spans of time. Inferences received meanwhile, outside of them, are not read."""
    starts = await starts_of(run.connection, run.targets, by, run.deadline)
    uids = tuple(uid_floor(start) for start in starts)
    if uids:
        run.targets = [_within(target, uids[0], uids[-1]) for target in run.targets]
    return InTime(uids or (LOWEST, HIGHEST))


def _within(target: Target, lo: Any, hi: Any) -> Target:
    query = target.query
    return replace(target, query=replace(query, scan_range=query.scan_range.clip(lo, hi)))


async def _bounds(run: _Run, operand: Operand, of: ByHistogram | Measure) -> tuple[Bound, ...]:
    """Return the requested bounds, or bounds from the smallest and the largest of all values."""
    if of.bounds is not None:
        _refuse_other_bounds(operand, of)
        return of.bounds
    ends = await run.make_collector([]).ends(operand)
    if not ends.number:
        return ()
    choose_bounds = automatic_times if operand.kind == "timestamp" else automatic
    return choose_bounds(ends.low, ends.high, of.bins)


def _refuse_other_bounds(operand: Operand, of: ByHistogram | Measure) -> None:
    """Raise ImpossibleComparison for numbers as bounds of a timestamp, and the reverse."""
    assert of.of is not None
    expected = datetime if operand.kind == "timestamp" else Decimal
    if all(isinstance(bound, expected) for bound in of.bounds or ()):
        return
    what = "instants: 2026-11-01T00:00:00Z" if expected is datetime else "numbers"
    message = f"{of.of.text!r} is a {operand.kind}, and the bounds of one are {what}"
    path = f"{of.of.path.removesuffix('.of')}.bounds"
    raise ImpossibleComparison(f"{message}.", faults=[Fault(path, message)])


async def _collect(run: _Run) -> PartialAggregate:
    """Return the groups with their inferences, and the sums of every operand."""
    requested_sums: dict[Operand, frozenset[Sum]] = {}
    for measure in run.aggregation.measures:
        if measure.function.needs in {"sums", "percentiles"} and measure.of is not None:
            operand = run.operands[measure.name]
            requested_sums[operand] = (
                requested_sums.get(operand, frozenset()) | measure.function.sums
            )
    own = {
        operand: sums for operand, sums in requested_sums.items() if operand.source == "inference"
    }
    collector = run.make_collector()
    partial = await _inferences(run, collector, own)
    sketched = set() if run.dimensions else _of_percentiles(run)
    for operand in requested_sums.keys() - own.keys():
        if operand in sketched:
            sums, bins = await collector.sketch(operand, requested_sums[operand])
            partial.sums[operand], run.read[operand, "sketch"] = {(): sums}, {(): bins}
        else:
            partial.sums[operand] = await collector.sums({operand: requested_sums[operand]})
    return partial


def _of_percentiles(run: _Run) -> set[Operand]:
    """Return the operands of percentiles, which need bins if they have many values.

    The bins come with all sums.
    """
    measures = (
        measure for measure in run.aggregation.measures if measure.function.needs == "percentiles"
    )
    return {run.operands[measure.name] for measure in measures}


async def _inferences(
    run: _Run, collector: PartCollector, own: dict[Operand, frozenset[Sum]]
) -> PartialAggregate:
    if collector.is_by_index and not own:
        return await collector.tally_by_index()
    counted = any(
        measure.function.name == "count" and measure.of is None
        for measure in run.aggregation.measures
    )
    if not run.dimensions and not own and not counted:
        return PartialAggregate()  # no measure needs the number of inferences
    return await collector.collect_sums(own)


async def _count(run: _Run, partial: PartialAggregate, measure: Measure) -> None:
    """Read what a measure needs besides sums."""
    name, function = measure.name, measure.function
    if measure.of is None or function.needs == "sums":
        return
    operand = run.operands[name]
    if function.needs == "percentiles":
        number = sum(sums.number for sums in partial.sums[operand].values())
        if number > EXACT_VALUES:
            run.approximate.add(name)
        by: CountedBy = "sketch" if name in run.approximate else "value"
        run.counts[name] = await _counts(run, operand, by)
    elif function.needs == "bins":
        bounds = run.bounds[name] = await _bounds(run, operand, measure)
        run.counts[name] = await _counts(run, operand, bounds) if bounds else {}
    elif function.name == "distinct" and not run.dimensions and operand.source == "metadata":
        run.counts[name] = {(): await _first(run, operand, measure)}
    else:
        run.counts[name] = await _counts(run, operand, "value")


async def _counts(run: _Run, operand: Operand, by: CountedBy) -> Counts:
    if (operand, by) not in run.read:
        run.read[operand, by] = await run.make_collector().counts(operand, by)
    return run.read[operand, by]


async def _first(run: _Run, operand: Operand, measure: Measure) -> Counter[Any]:
    return await first_values(
        run.connection,
        run.targets,
        operand,
        measure.prefix,
        limit=measure.limit,
        deadline=run.deadline,
        budget=run.budget,
    )


def _keys(run: _Run, partial: PartialAggregate) -> Sequence[Key]:
    """Return the keys of all groups; without groups, one key even if nothing matches.

    Predictions without a label are a group that may have no inference.
    """
    if not run.aggregation.group_by:
        return [()]
    sums = (
        key for groups in partial.sums.values() for key, values in groups.items() if values.number
    )
    counts = (key for groups in run.counts.values() for key in groups)
    return list(dict.fromkeys([*partial.inferences, *sums, *counts]))


def _group(run: _Run, partial: PartialAggregate, key: Key) -> Group:
    inferences = partial.inferences[key]
    measures: dict[str, Any] = {}
    for measure in run.aggregation.measures:
        name = measure.name
        operand = run.operands.get(name)
        result = MeasureResult(
            inferences=inferences,
            sums=partial.sums.get(operand, {}).get(key, PartialSums())
            if operand
            else PartialSums(),
            counts=run.counts.get(name, {}).get(key, Counter()),
            bounds=run.bounds.get(name, ()),
            approximate=name in run.approximate,
        )
        measures[name] = format_measure(measure, result)
    return Group(key, inferences, name_key(run.aggregation, run.dimensions, key), measures)


_LAST: Final = datetime.max.replace(tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")
_Step: TypeAlias = timedelta | Width
"""A part of a second, or a span of time."""


def _widths(unit: Unit, factor: int, *counts: int) -> tuple[Width, ...]:
    return tuple(Width(count * factor, unit) for count in counts)


_STEPS: Final[tuple[_Step, ...]] = (
    *(timedelta(microseconds=count * 10**power) for power in range(6) for count in (1, 2, 5)),
    *_widths("second", 1, 1, 2, 5, 10, 15, 30),
    *_widths("second", 60, 1, 2, 5, 10, 15, 30),
    *_widths("second", 3600, 1, 2, 3, 6, 12),
    *_widths("day", 1, 1, 2, 7, 14),
    *_widths("month", 1, 1, 2, 3, 6),
    *_widths("month", 12, *(count * 10**power for power in range(4) for count in (1, 2, 5))),
    *_widths("month", 12, 10_000, 20_000),
)
_OF_ONE: Final = Width(1, "second")


def automatic_times(low: datetime, high: datetime, bins: int) -> tuple[datetime, ...]:
    """Return bounds of about `bins` bins, at most two more, that contain all of [low, high].

    The last instant of the calendar is in no bin: if `high` is that, it is the last bound.
    """
    step = _step(high - low, bins)
    bounds = [_floor(step, low)]
    while bounds[-1] <= high and bounds[-1] < _LAST:
        bounds.append(_following(step, bounds[-1]))
    return tuple(bounds)


def _step(span: timedelta, bins: int) -> _Step:
    if not span:
        return _OF_ONE
    return next(step for step in _STEPS if _least(step) * bins >= span)


def _least(step: _Step) -> timedelta:
    return step if isinstance(step, timedelta) else step.least


def _floor(step: _Step, at: datetime) -> datetime:
    if isinstance(step, Width):
        return floor(step, _ZONE, at)
    second = at.replace(microsecond=0)
    return second + (at - second) // step * step


def _following(step: _Step, start: datetime) -> datetime:
    """Return the beginning of the bin after the one beginning at `start`.

    It is the last instant of the calendar if the bin begins beyond it.
    """
    try:
        return start + step if isinstance(step, timedelta) else following(step, _ZONE, start)
    except (OverflowError, ValueError):
        return _LAST
