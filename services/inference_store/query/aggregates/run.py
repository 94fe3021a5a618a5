"""An aggregation from names to numbers."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid
from inference_store.inference.events.uid import uid_floor
from inference_store.query.ask import UnknownKeys
from inference_store.query.bounded import Deadline
from inference_store.query.filters.typed import Kind
from inference_store.query.scan_range import HIGHEST, LOWEST

from .answer import Aggregated, Found, shown
from .asked import Aggregation, Bound, ByHistogram, ByLabel, ByTime, Grouping, Measure
from .bins import automatic
from .budget import Budget
from .first_values import first_values
from .functions import AGGREGATES, Sum
from .gather import PartCollector, Target
from .names import Names
from .operand import LABEL, Operand
from .ordering import Group, in_order, key_of
from .partial import CountedBy, Counts, Key, PartialAggregate, PartialSums
from .rows import Dimension, InBins, InTime, Value
from .spans import starts_of
from .time_bins import automatic_times

# Up to so many values percentiles are exact.
EXACT_VALUES: Final = 100_000


@dataclass(slots=True)
class _Run:
    connection: AsyncConnection
    targets: list[Target]
    asked: Aggregation
    deadline: Deadline
    names: Names
    budget: Budget = field(default_factory=Budget)
    operands: dict[str, Operand] = field(default_factory=dict)
    dimensions: list[Dimension] = field(default_factory=list)
    # by measure
    counts: dict[str, Counts] = field(default_factory=dict)
    bounds: dict[str, Sequence[Bound]] = field(default_factory=dict)
    approximate: set[str] = field(default_factory=set)
    # what several measures need is read, and held, once
    read: dict[tuple[Operand, CountedBy], Counts] = field(default_factory=dict)

    def gathering(self, dimensions: Sequence[Dimension] | None = None) -> PartCollector:
        """What adds up, by these dimensions instead of those asked for."""
        by = self.dimensions if dimensions is None else dimensions
        return PartCollector(self.connection, self.targets, by, self.deadline, self.budget)


async def aggregate(
    connection: AsyncConnection,
    targets: Sequence[Target],
    asked: Aggregation,
    *,
    deadline: Deadline,
    unknown_keys: UnknownKeys = "refuse",
) -> Aggregated:
    """The groups and their measures. Raises Invalid, UnknownKey, ImpossibleComparison,
    TooManyGroups, OutOfTime."""
    names = Names([each.query.scan_range.model for each in targets], unknown_keys)
    run = _Run(connection, list(targets), asked, deadline, names)
    await _resolve(run)
    run.dimensions = [await _dimension(run, each) for each in asked.group_by]
    partial = await _collect(run)
    for measure in asked.measures:
        await _count(run, partial, measure)
    groups = [_group(run, partial, key) for key in _keys(run, partial)]
    kept, left = in_order(asked, groups)
    return Aggregated(
        groups=[each.shown for each in kept],
        others={"groups": len(left), "inferences": sum(each.inferences for each in left)},
        approximate=bool(run.approximate),
        warnings=tuple(names.warnings),
    )


async def _resolve(run: _Run) -> None:
    for measure in run.asked.measures:
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
    if operand.place == "prediction":
        message = "groups are of inferences: by `label`, a property or a metadata key"
        raise Invalid(f"{by.of.text!r}: {message}.", faults=[Fault(by.of.path, message)])
    if not isinstance(by, ByHistogram):
        return Value(operand)
    if operand.kind not in kinds:
        known = sorted(kinds)
        message = f"a histogram is of a {' or '.join(known)}; {by.of.text!r} is a {operand.kind}"
        raise ImpossibleComparison(f"{message}.", faults=[Fault(by.of.path, message, known)])
    return InBins(operand, await _bounds(run, operand, by))


def _narrow_kinds(kinds: Collection[Kind], bounds: Sequence[Bound] | None) -> Collection[Kind]:
    """Return the kind that the given bounds have; a key that nobody has sent is read as that."""
    if bounds is None:
        return kinds
    return {"timestamp"} if all(isinstance(each, datetime) for each in bounds) else {"number"}


async def _in_time(run: _Run, by: ByTime) -> InTime:
    """The spans of time; what comes in meanwhile, outside of them, is not looked at."""
    starts = await starts_of(run.connection, run.targets, by, run.deadline)
    uids = tuple(uid_floor(each) for each in starts)
    if uids:
        run.targets = [_within(each, uids[0], uids[-1]) for each in run.targets]
    return InTime(uids or (LOWEST, HIGHEST))


def _within(target: Target, lo: Any, hi: Any) -> Target:
    query = target.query
    return replace(target, query=replace(query, scan_range=query.scan_range.clip(lo, hi)))


async def _bounds(run: _Run, operand: Operand, of: ByHistogram | Measure) -> tuple[Bound, ...]:
    """Given, or made from the smallest and the largest value of all."""
    if of.bounds is not None:
        _refuse_other_bounds(operand, of)
        return of.bounds
    found = await run.gathering([]).ends(operand)
    if not found.number:
        return ()
    made = automatic_times if operand.kind == "timestamp" else automatic
    return made(found.low, found.high, of.bins)


def _refuse_other_bounds(operand: Operand, of: ByHistogram | Measure) -> None:
    """Raise ImpossibleComparison for numbers as bounds of a timestamp, and the reverse."""
    assert of.of is not None
    expected = datetime if operand.kind == "timestamp" else Decimal
    if all(isinstance(each, expected) for each in of.bounds or ()):
        return
    what = "instants: 2026-11-01T00:00:00Z" if expected is datetime else "numbers"
    message = f"{of.of.text!r} is a {operand.kind}, and the bounds of one are {what}"
    path = f"{of.of.path.removesuffix('.of')}.bounds"
    raise ImpossibleComparison(f"{message}.", faults=[Fault(path, message)])


async def _collect(run: _Run) -> PartialAggregate:
    """The groups with their inferences, and the sums of every name."""
    wanted: dict[Operand, frozenset[Sum]] = {}
    for measure in run.asked.measures:
        if measure.function.needs in {"sums", "percentiles"} and measure.of is not None:
            operand = run.operands[measure.name]
            wanted[operand] = wanted.get(operand, frozenset()) | measure.function.sums
    own = {operand: sums for operand, sums in wanted.items() if operand.place == "inference"}
    gathering = run.gathering()
    partial = await _inferences(run, gathering, own)
    sketched = set() if run.dimensions else _of_percentiles(run)
    for operand in wanted.keys() - own.keys():
        if operand in sketched:
            sums, bins = await gathering.sketch(operand, wanted[operand])
            partial.sums[operand], run.read[operand, "sketch"] = {(): sums}, {(): bins}
        else:
            partial.sums[operand] = await gathering.sums({operand: wanted[operand]})
    return partial


def _of_percentiles(run: _Run) -> set[Operand]:
    """Of many values percentiles need bins; and the bins have all sums."""
    measures = (each for each in run.asked.measures if each.function.needs == "percentiles")
    return {run.operands[each.name] for each in measures}


async def _inferences(
    run: _Run, gathering: PartCollector, own: dict[Operand, frozenset[Sum]]
) -> PartialAggregate:
    if gathering.is_by_index and not own:
        return await gathering.tally_by_index()
    counted = any(each.function.name == "count" and each.of is None for each in run.asked.measures)
    if not run.dimensions and not own and not counted:
        return PartialAggregate()  # nobody asks how many there are
    return await gathering.collect_sums(own)


async def _count(run: _Run, partial: PartialAggregate, measure: Measure) -> None:
    """Read what a measure needs beside sums."""
    name, function = measure.name, measure.function
    if measure.of is None or function.needs == "sums":
        return
    operand = run.operands[name]
    if function.needs == "percentiles":
        number = sum(each.number for each in partial.sums[operand].values())
        if number > EXACT_VALUES:
            run.approximate.add(name)
        by: CountedBy = "sketch" if name in run.approximate else "value"
        run.counts[name] = await _counts(run, operand, by)
    elif function.needs == "bins":
        bounds = run.bounds[name] = await _bounds(run, operand, measure)
        run.counts[name] = await _counts(run, operand, bounds) if bounds else {}
    elif function.name == "distinct" and not run.dimensions and operand.place == "metadata":
        run.counts[name] = {(): await _first(run, operand, measure)}
    else:
        run.counts[name] = await _counts(run, operand, "value")


async def _counts(run: _Run, operand: Operand, by: CountedBy) -> Counts:
    if (operand, by) not in run.read:
        run.read[operand, by] = await run.gathering().counts(operand, by)
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
    """Without groups there is one answer, also where nothing matches.

    Predictions without a label are a group of which there may be no inference.
    """
    if not run.asked.group_by:
        return [()]
    sums = (key for each in partial.sums.values() for key, found in each.items() if found.number)
    counts = (key for each in run.counts.values() for key in each)
    return list(dict.fromkeys([*partial.inferences, *sums, *counts]))


def _group(run: _Run, partial: PartialAggregate, key: Key) -> Group:
    inferences = partial.inferences[key]
    measures: dict[str, Any] = {}
    for measure in run.asked.measures:
        name = measure.name
        operand = run.operands.get(name)
        found = Found(
            inferences=inferences,
            sums=partial.sums.get(operand, {}).get(key, PartialSums())
            if operand
            else PartialSums(),
            counts=run.counts.get(name, {}).get(key, Counter()),
            bounds=run.bounds.get(name, ()),
            approximate=name in run.approximate,
        )
        measures[name] = shown(measure, found)
    return Group(key, inferences, key_of(run.asked, run.dimensions, key), measures)
