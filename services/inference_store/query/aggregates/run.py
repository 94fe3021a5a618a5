"""Runs an aggregation, from its names to its numbers."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final
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
    read_each,
    span_around,
    split_unbroken,
)
from inference_store.query.filters.names import FilterCheck
from inference_store.query.filters.typed import Kind
from inference_store.query.plan import Query, find_pieces, split_models
from inference_store.query.preparation import UnknownKeys

from .aggregation import (
    AGGREGATES,
    Aggregation,
    Bound,
    GroupBody,
    MeasureBody,
)
from .answer import (
    Aggregated,
    Group,
    Measure,
    OmittedGroups,
    name_key,
    sort_groups,
)
from .bins import TooManyBuckets, automatic, automatic_times, starts, width_of
from .collector import Collector, Groups, Sums, add_sums
from .operands import LABEL, TIME, Operand, find_names, resolve
from .statement import NUMBER, By, Column, Dimension, Key, Statement

# Percentiles of no more values are exact.
EXACT_VALUES: Final = 100_000
MOST_SPANS: Final = 10_000


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
    groups_of = [by.histogram.of if by.histogram else by.of for by in aggregation.group_by]
    of = [one for one in (*(m.of for m in aggregation.measures), *groups_of) if one is not None]
    names = await find_names(connection, [*numbered], of, unknown_keys)
    measures = [
        Measure(measure, resolve_measure(names, measure, f"measures[{n}]"))
        for n, measure in enumerate(aggregation.measures)
    ]
    collector = Collector(connection, numbered, query, deadline)
    groups: tuple[Dimension, ...] = ()
    for n, by in enumerate(aggregation.group_by):
        groups += (await read_dimension(collector, names, by, f"group_by[{n}]"),)
    summed = await _add_up(collector, groups, measures)
    for measure in measures:
        await _count(collector, groups, summed, measure)
    # without groups there is one, even if nothing matches; predictions without a label are a group
    # that may have no inference
    counted = (key for measure in measures for key in measure.counts)
    keys: Collection[Key] = dict.fromkeys([*summed, *counted]) if groups else [()]
    shown = [
        Group(
            raw=key,
            inferences=summed.get(key, {}).get(NUMBER, 0),
            key=name_key(aggregation, groups, key),
            measures={one.body.name: one.show(summed.get(key, {}), key) for one in measures},
        )
        for key in keys
    ]
    page, others = sort_groups(aggregation, shown)
    inferences = sum(group.inferences for group in others)
    return Aggregated(
        groups=list(page),
        others=OmittedGroups(groups=len(others), inferences=inferences),
        approximate=any(measure.is_approximate for measure in measures),
        warnings=tuple(names.warnings),
    )


def resolve_measure(names: FilterCheck, measure: MeasureBody, path: str) -> Operand | None:
    """Return what a measure is of. Raises Invalid, UnknownKey, ImpossibleComparison."""
    if measure.of is None:
        return None
    kinds, bounds, name = measure.aggregate.kinds, measure.bounds or (), measure.of.name
    # a key that nobody has sent is read as what the bounds are
    of_bounds: set[Kind] = {
        "timestamp" if isinstance(one, datetime) else "number" for one in bounds
    }
    operand = resolve(names, measure.of, f"{path}.of", of_bounds or kinds)
    wrong, at, known = "", "of", list[str]()
    if operand.kind not in kinds:
        known = sorted(kinds)
        wrong = f"{measure.function} is of a {' or '.join(known)}; {name!r} is a {operand.kind}"
    elif of_bounds - {operand.kind}:
        what = "numbers" if operand.kind == "number" else "instants: 2026-11-01T00:00:00Z"
        wrong, at = f"{name!r} is a {operand.kind}, and the bounds of one are {what}", "bounds"
    elif measure.prefix and operand.kind != "string":
        wrong, at = f"a prefix is of texts, and {name!r} is a {operand.kind}", "prefix"
    if wrong:
        raise ImpossibleComparison.of(f"{path}.{at}", wrong, known)
    return operand


async def read_dimension(
    collector: Collector, names: FilterCheck, by: GroupBody, path: str
) -> Dimension:
    """Return what a group is by. Raises what `aggregate` raises."""
    if by.is_label:
        return Dimension(LABEL)
    if by.time is not None:
        return await _divide_time(collector, by.time, by.zone, path)
    if by.histogram is None:
        assert by.of is not None, "it is one of the four"
        operand = resolve(names, by.of, path, AGGREGATES["count"].kinds)
    else:
        path, of = f"{path}.histogram", by.histogram
        measure = MeasureBody(function="histogram", of=of.of, bins=of.bins, bounds=of.bounds)
        found = resolve_measure(names, measure, path)
        assert found is not None
        operand, path = found, f"{path}.of"
    if operand.source == "prediction":
        message = "groups are of inferences: by `label`, a property or a metadata key"
        raise Invalid.of(path, message)
    if by.histogram is None:
        return Dimension(operand)
    return Dimension(operand, await _choose_bounds(collector, operand, measure))


async def _divide_time(collector: Collector, span: str, zone: str, path: str) -> Dimension:
    """Return the spans of time that touch the first inference, the last, and those between.

    Inferences received meanwhile, outside of them, are not read.
    """
    asked = collector.connection, collector.query, collector.deadline
    first, last = await find_end(*asked, newest=False), await find_end(*asked, newest=True)
    if first is None or last is None:
        return Dimension(TIME, (LOWEST, HIGHEST))
    try:
        begins = starts(width_of(span), ZoneInfo(zone), first, last, most=MOST_SPANS)
    except TooManyBuckets:
        message = f"from {first:%Y-%m-%d} to {last:%Y-%m-%d} there are more than {MOST_SPANS:,}"
        detail = f"Spans of {span}: {message}. Narrow received_at, or take longer spans."
        raise TooManyGroups(detail, faults=[Fault(path, message)]) from None
    uids = tuple(map(uid_floor, begins))
    here = collector.query.scan_range.clip(uids[0], uids[-1])
    collector.query = replace(collector.query, scan_range=here)
    return Dimension(TIME, uids)


async def _choose_bounds(
    collector: Collector, operand: Operand, of: MeasureBody
) -> tuple[Bound, ...]:
    if of.bounds is not None:
        return tuple(of.bounds)
    low, high = Column(operand, "low"), Column(operand, "high")
    ends = (await collector.collect(Statement((), (low, high), operand))).get((), {})
    if ends.get(low) is None:
        return ()
    choose_bounds = automatic_times if operand.kind == "timestamp" else automatic
    return choose_bounds(ends[low], ends[high], of.bins)


async def _add_up(
    collector: Collector, by: tuple[Dimension, ...], measures: Sequence[Measure]
) -> Groups:
    """Read the sums of the measures: one statement of inferences, and one of each other operand."""
    columns: dict[Operand | None, dict[Column, None]] = {}
    for measure in measures:
        for column in measure.columns:
            leads = column.operand if column.operand and column.operand.is_apart else None
            columns.setdefault(leads, {})[column] = None
    own, groups = columns.pop(None, {}), dict[Key, Sums]()
    if by or own or any(one.operand is None for one in measures):
        groups = await collector.add_up(Statement(by, (NUMBER, *own)))
    for operand, sums in columns.items():
        # percentiles need bins if there are many values: the bins come with all sums
        is_sketched = not by and any(
            one.operand == operand and one.body.aggregate.needs == "percentiles" for one in measures
        )
        statement = Statement(by, tuple(sums), operand)
        if is_sketched:
            statement = replace(statement, columns=(NUMBER, *sums), counts="sketch")
        found = await collector.add_up(statement)
        for key, of_group in found.items():
            add_sums(groups, key, of_group)
    return groups


async def _count(
    collector: Collector, groups: tuple[Dimension, ...], summed: Groups, measure: Measure
) -> None:
    """Read the values or bins that a measure needs."""
    operand, body = measure.operand, measure.body
    needs: str = body.aggregate.needs
    if operand is None or needs == "sums":
        return
    by: By = "value"
    if needs == "percentiles":
        number = Column(operand, "number")
        measure.is_approximate = sum(of.get(number, 0) for of in summed.values()) > EXACT_VALUES
        by = "sketch" if measure.is_approximate else "value"
    elif needs == "bins":
        by = measure.bounds = await _choose_bounds(collector, operand, body)
        if not by:
            return
    elif body.function == "distinct" and not groups and operand.source == "metadata":
        # and one more, if there is one
        first = Statement(leads=operand, counts=by, prefix=body.prefix, limit=body.limit + 1)
        found = await collector.collect(first)
        measure.counts = {(): Counter(value for (value,) in found)}
        return
    measure.counts = await collector.count(Statement(groups, leads=operand, counts=by))


async def find_end(
    connection: AsyncConnection, query: Query, deadline: Deadline, *, newest: bool
) -> datetime | None:
    """Return when the first or the last inference in the range was received. Raises OutOfTime."""
    what, choose = f"find the {'last' if newest else 'first'} inference", max if newest else min
    uid, ends = inference.c.uid, list[UUID]()
    for one in await split_models(connection, replace(query, newest_first=newest)):
        for here in map(span_around, split_unbroken(await find_pieces(connection, one))):
            order = uid.desc() if newest else uid
            first = select(uid).where(here.of(inference)).order_by(order).limit(1)
            rows = await fetch(connection, read_each(here, first), deadline, what=what)
            ends += [row.uid for row in rows]
            if rows:
                break
    return received_at_of(choose(ends)) if ends else None
