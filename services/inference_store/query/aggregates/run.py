"""Runs an aggregation, from its names to its numbers."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.index.tables import inference
from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid, TooManyGroups
from inference_store.inference.events.event import received_at_of, uid_floor
from inference_store.query.deadline import (
    HIGHEST,
    LOWEST,
    Deadline,
    fetch,
    span_around,
    split_unbroken,
)
from inference_store.query.filters.typed import Kind
from inference_store.query.plan import Query, find_pieces, split_models
from inference_store.query.preparation import UnknownKeys
from inference_store.query.search import Search

from .aggregation import (
    AGGREGATES,
    LABEL,
    Aggregation,
    Bound,
    GroupBody,
    HistogramBody,
    MeasureBody,
    Names,
    Operand,
    Sum,
    TypedName,
)
from .answer import (
    Aggregated,
    Group,
    MeasureResult,
    OmittedGroups,
    format_measure,
    name_key,
    sort_groups,
)
from .bins import TooManyBuckets, automatic, automatic_times, starts, width_of
from .part_collector import Budget, PartCollector
from .rows import (
    Counted,
    CountedBy,
    Counts,
    Dimension,
    Groups,
    InBins,
    InTime,
    Key,
    PartialSums,
    Summed,
    Value,
)

# Percentiles of no more values are exact.
EXACT_VALUES: Final = 100_000
MOST_SPANS: Final = 10_000


@dataclass(slots=True)
class _Run:
    connection: AsyncConnection
    models: Mapping[int, Registration]
    query: Query
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
        about = self.connection, self.models, self.query
        return PartCollector(*about, by, self.deadline, self.budget)


async def aggregate(
    connection: AsyncConnection,
    models: Sequence[Registration],
    query: Query,
    aggregation: Aggregation,
    *,
    deadline: Deadline,
    unknown_keys: UnknownKeys = "refuse",
) -> Aggregated:
    """Return the groups and their measures. `models`: those of the query.

    Raises Invalid, UnknownKey, ImpossibleComparison, TooManyGroups, OutOfTime.
    """
    numbered = {model.model: model for model in models}
    names = Names([*numbered], unknown_keys)
    run = _Run(connection, numbered, query, aggregation, deadline, names)
    await _resolve(run)
    run.dimensions = [
        await _dimension(run, by, f"group_by[{n}]") for n, by in enumerate(aggregation.group_by)
    ]
    summed = await _collect(run)
    for measure in aggregation.measures:
        await _count(run, summed, measure)
    groups = [_group(run, summed.get(key, Summed()), key) for key in _keys(run, summed)]
    page, others = sort_groups(aggregation, groups)
    return Aggregated(
        groups=list(page),
        others=OmittedGroups(
            groups=len(others), inferences=sum(group.inferences for group in others)
        ),
        approximate=bool(run.approximate),
        warnings=tuple(names.warnings),
    )


async def _resolve(run: _Run) -> None:
    for number, measure in enumerate(run.aggregation.measures):
        if measure.of is None:
            continue
        kinds, path = measure.aggregate.kinds, f"measures[{number}]"
        likely = _narrow_kinds(kinds, measure.bounds)
        operand = await run.names.operand(run.connection, measure.of, f"{path}.of", likely)
        _refuse_kind(measure.of, f"{path}.of", operand, kinds, measure.function)
        _refuse_other_bounds(operand, measure, path)
        if measure.prefix and operand.kind != "string":
            message = f"a prefix is of texts, and {measure.of.name!r} is a {operand.kind}"
            raise ImpossibleComparison(f"{message}.", faults=[Fault(f"{path}.prefix", message)])
        run.operands[measure.name] = operand


async def _dimension(run: _Run, by: GroupBody, path: str) -> Dimension:
    if by.is_label:
        return Value(LABEL)
    if by.time is not None:
        return await _in_time(run, by.time, by.zone, path)
    if (histogram := by.histogram) is not None:
        of, of_path, path = histogram.of, f"{path}.histogram.of", f"{path}.histogram"
        kinds = AGGREGATES["histogram"].kinds
        likely = _narrow_kinds(kinds, histogram.bounds)
    else:
        assert by.of is not None, "it is one of the four"
        of, of_path, likely = by.of, path, AGGREGATES["count"].kinds
    operand = await run.names.operand(run.connection, of, of_path, likely)
    if operand.source == "prediction":
        message = "groups are of inferences: by `label`, a property or a metadata key"
        raise Invalid(f"{of.name!r}: {message}.", faults=[Fault(of_path, message)])
    if histogram is None:
        return Value(operand)
    _refuse_kind(of, of_path, operand, kinds, "a histogram")
    _refuse_other_bounds(operand, histogram, path)
    return InBins(operand, await _bounds(run, operand, histogram))


def _refuse_kind(
    name: TypedName, path: str, operand: Operand, kinds: Collection[Kind], what: str
) -> None:
    if operand.kind not in kinds:
        names = sorted(kinds)
        message = f"{what} is of a {' or '.join(names)}; {name.name!r} is a {operand.kind}"
        raise ImpossibleComparison(f"{message}.", faults=[Fault(path, message, names)])


def _narrow_kinds(kinds: Collection[Kind], bounds: Sequence[Bound] | None) -> Collection[Kind]:
    """Return the kinds that the bounds allow; a key that nobody has sent is read as one of them."""
    if bounds is None:
        return kinds
    return {"timestamp"} if all(isinstance(bound, datetime) for bound in bounds) else {"number"}


async def _in_time(run: _Run, span: str, zone: str, path: str) -> InTime:
    """Return the spans of time that touch the first inference, the last, and those between.

    Inferences received meanwhile, outside of them, are not read.
    """
    asked = run.connection, run.query, run.deadline
    first, last = await find_end(*asked, newest=False), await find_end(*asked, newest=True)
    if first is None or last is None:
        return InTime((LOWEST, HIGHEST))
    try:
        begins = starts(width_of(span), ZoneInfo(zone), first, last, most=MOST_SPANS)
    except TooManyBuckets:
        message = f"from {first:%Y-%m-%d} to {last:%Y-%m-%d} there are more than {MOST_SPANS:,}"
        detail = f"Spans of {span}: {message}. Narrow received_at, or take longer spans."
        raise TooManyGroups(detail, faults=[Fault(path, message)]) from None
    uids = tuple(map(uid_floor, begins))
    run.query = replace(run.query, scan_range=run.query.scan_range.clip(uids[0], uids[-1]))
    return InTime(uids)


async def _bounds(
    run: _Run, operand: Operand, of: HistogramBody | MeasureBody
) -> tuple[Bound, ...]:
    if of.bounds is not None:
        return tuple(of.bounds)
    ends = await run.make_collector([]).ends(operand)
    if not ends.number:
        return ()
    choose_bounds = automatic_times if operand.kind == "timestamp" else automatic
    return choose_bounds(ends.low, ends.high, of.bins)


def _refuse_other_bounds(operand: Operand, of: HistogramBody | MeasureBody, path: str) -> None:
    assert of.of is not None
    expected = datetime if operand.kind == "timestamp" else Decimal
    if all(isinstance(bound, expected) for bound in of.bounds or ()):
        return
    what = "instants: 2026-11-01T00:00:00Z" if expected is datetime else "numbers"
    message = f"{of.of.name!r} is a {operand.kind}, and the bounds of one are {what}"
    raise ImpossibleComparison(f"{message}.", faults=[Fault(f"{path}.bounds", message)])


async def _collect(run: _Run) -> Groups:
    requested_sums: dict[Operand, frozenset[Sum]] = {}
    for measure in run.aggregation.measures:
        if measure.aggregate.needs in {"sums", "percentiles"} and measure.of is not None:
            operand = run.operands[measure.name]
            requested_sums[operand] = (
                requested_sums.get(operand, frozenset()) | measure.aggregate.sums
            )
    own = {
        operand: sums for operand, sums in requested_sums.items() if operand.source == "inference"
    }
    counted = any(
        measure.function == "count" and measure.of is None for measure in run.aggregation.measures
    )
    collector = run.make_collector()
    # else no measure needs the number of inferences
    groups = await collector.collect(own) if run.dimensions or own or counted else {}
    # percentiles need bins if there are many values: the bins come with all sums
    sketched = {
        run.operands[measure.name]
        for measure in run.aggregation.measures
        if measure.aggregate.needs == "percentiles" and not run.dimensions
    }
    for operand in requested_sums.keys() - own.keys():
        bins: Counted | None = (operand, "sketch") if operand in sketched else None
        found = await collector.collect({operand: requested_sums[operand]}, counted=bins)
        if bins is not None:
            run.read[bins] = _count_values(found)
        for key, group in found.items():
            if group.sums[operand].number:
                groups.setdefault(key[: len(run.dimensions)], Summed()).merge_sums(group)
    return groups


async def _count(run: _Run, groups: Groups, measure: MeasureBody) -> None:
    name, function = measure.name, measure.aggregate
    if measure.of is None or function.needs == "sums":
        return
    operand = run.operands[name]
    if function.needs == "percentiles":
        sums = (group.sums[operand] for group in groups.values() if operand in group.sums)
        if sum(some.number for some in sums) > EXACT_VALUES:
            run.approximate.add(name)
        by: CountedBy = "sketch" if name in run.approximate else "value"
        run.counts[name] = await _counts(run, operand, by)
    elif function.needs == "bins":
        bounds = run.bounds[name] = await _bounds(run, operand, measure)
        run.counts[name] = await _counts(run, operand, bounds) if bounds else {}
    elif function.name == "distinct" and not run.dimensions and operand.source == "metadata":
        # and one more, if there is one
        first = await run.make_collector().first(operand, measure.prefix, measure.limit + 1)
        run.counts[name] = _count_values(first)
    else:
        run.counts[name] = await _counts(run, operand, "value")


async def _counts(run: _Run, operand: Operand, by: CountedBy) -> Counts:
    if (operand, by) not in run.read:
        found = await run.make_collector().collect({}, counted=(operand, by))
        run.read[operand, by] = _count_values(found)
    return run.read[operand, by]


def _count_values(groups: Groups) -> Counts:
    counts: Counts = {}
    for key, group in groups.items():
        counts.setdefault(key[:-1], Counter())[key[-1]] = group.inferences
    return counts


def _keys(run: _Run, groups: Groups) -> Sequence[Key]:
    """Return the keys of all groups; without groups, one key even if nothing matches.

    Predictions without a label are a group that may have no inference.
    """
    if not run.aggregation.group_by:
        return [()]
    counts = (key for counted in run.counts.values() for key in counted)
    return list(dict.fromkeys([*groups, *counts]))


def _group(run: _Run, summed: Summed, key: Key) -> Group:
    measures: dict[str, Any] = {}
    for measure in run.aggregation.measures:
        name = measure.name
        operand = run.operands.get(name)
        sums = None if operand is None else summed.sums.get(operand)
        result = MeasureResult(
            inferences=summed.inferences,
            sums=sums or PartialSums(),
            counts=run.counts.get(name, {}).get(key, Counter()),
            bounds=run.bounds.get(name, ()),
            approximate=name in run.approximate,
        )
        measures[name] = format_measure(measure, result)
    named = name_key(run.aggregation, run.dimensions, key)
    return Group(raw=key, inferences=summed.inferences, key=named, measures=measures)


async def find_end(
    connection: AsyncConnection, query: Query, deadline: Deadline, *, newest: bool
) -> datetime | None:
    """Return when the first or the last inference in the range was received. Raises OutOfTime."""
    what, choose = f"find the {'last' if newest else 'first'} inference", max if newest else min
    ends: list[UUID] = []
    for one in await split_models(connection, replace(query, newest_first=newest)):
        for group in split_unbroken(await find_pieces(connection, one)):
            search = Search(connection=connection, query=one, limit=1, deadline=deadline)
            here = span_around(group)
            first = search.select_first(here, select(inference.c.uid).where(here.of(inference)), 1)
            rows = await fetch(connection, first, deadline, what=what)
            ends += [row.uid for row in rows]
            if rows:
                break
    return received_at_of(choose(ends)) if ends else None
