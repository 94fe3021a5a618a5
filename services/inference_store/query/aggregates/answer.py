"""Formats computed measures, and sorts groups, for the answer."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final, TypeAlias

from pydantic import Field

from inference_store.inference.events.event import received_at_of
from inference_store.inference.field_docs import Hidden, Stored

from .aggregation import SUMMED, Aggregation, Bound, MeasureBody, Sum
from .bins import METHOD, deviation, percentile, plain, quotient, value_of, variance
from .operands import TIME, Operand
from .statement import Column, Dimension, Key

EXACT_METHOD: Final = "exact"


class Group(Stored):
    """A group. `key`: what it was grouped by, null where there is no value."""

    raw: Hidden[Key]
    """By which it is sorted."""
    inferences: Hidden[int]
    key: dict[str, Any] = Field(examples=[{"time": "2026-11-01T00:00:00.000000Z"}])
    measures: dict[str, Any] = Field(examples=[{"count": 17, "mean(model_ms)": 12.5}])


class OmittedGroups(Stored):
    """What `limit` left out."""

    groups: int
    inferences: int
    """An inference in several groups is counted in each."""


class Aggregated(Stored):
    """Measures by groups."""

    groups: list[Group]
    others: OmittedGroups
    approximate: bool
    """Whether some percentiles are not exact; each says it itself. All else always is exact."""
    warnings: Sequence[str]


Result: TypeAlias = Mapping[Sum, Any]
"""Sums of a group; `number` is that of its values, or of inferences."""


@dataclass(slots=True)
class Measure:
    """A measure, and what was read for it. `counts`: how many values or bins, by group."""

    body: MeasureBody
    operand: Operand | None
    counts: Mapping[Key, Counter[Any]] = field(default_factory=dict)
    bounds: Sequence[Bound] = ()
    is_approximate: bool = False

    @property
    def columns(self) -> list[Column]:
        """The sums that it needs, with the number of values first."""
        sums = ("number", *sorted(self.body.aggregate.sums))
        is_summed = self.operand is not None and self.body.aggregate.needs in SUMMED
        return [Column(self.operand, one) for one in sums] if is_summed else []

    def show(self, sums: Mapping[Column, Any], key: Key) -> Any:
        """Return its value in a group, for JSON."""
        own = {one.sum: value for one, value in sums.items() if one.operand == self.operand}
        counts = self.counts.get(key, Counter())
        return _FORMATTERS[self.body.function](self, {"number": 0, **own}, counts)


def format_bin(number: int, bounds: Sequence[Bound]) -> dict[str, Any]:
    """Return the bounds of a bin, `from` inclusive and `to` exclusive; None: there is no bound."""
    return {
        "from": plain(bounds[number - 1]) if number > 0 else None,
        "to": plain(bounds[number]) if number < len(bounds) else None,
    }


def _spread(compute: Callable[[int, Decimal, Decimal], Decimal], sums: Result) -> Any:
    number: int = sums["number"]
    return plain(compute(number, sums["total"], sums["squares"])) if number > 1 else None


def _divide(part: Any, number: int) -> Any:
    return plain(quotient(Decimal(part), number)) if number else None


def _share(measure: Measure, sums: Result) -> Any:
    number, true = sums["number"], sums.get("true", 0)
    return _divide(true if measure.body.expected else number - true, number)


def _percentiles(measure: Measure, sums: Result, counts: Counter[Any]) -> Any:
    is_approximate = measure.is_approximate

    def find(at: Decimal) -> Any:
        if not counts:
            return None
        value = percentile(counts, at)
        if is_approximate:
            return plain(min(max(value_of(value), sums["low"]), sums["high"]))
        return plain(value)

    values = [{"at": plain(at), "value": find(at)} for at in measure.body.at]
    method = METHOD if is_approximate else EXACT_METHOD
    return {"values": values, "approximate": is_approximate, "method": method}


def _histogram(bounds: Sequence[Bound], counts: Counter[Any]) -> Any:
    last = len(bounds)
    bins = [{**format_bin(n, bounds), "count": counts[n]} for n in range(1, last)]
    return {"bins": bins, "below": counts[0], "above": counts[last] if last else 0}


def _top(limit: int, counts: Counter[Any]) -> Any:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    values = [{"value": plain(value), "count": count} for value, count in ordered[:limit]]
    return {"values": values, "others": sum(count for _, count in ordered[limit:])}


def _distinct(measure: MeasureBody, counts: Counter[Any]) -> Any:
    prefix, limit = measure.prefix, measure.limit
    ordered = sorted(one for one in counts if not prefix or str(one).startswith(prefix))
    return {"values": list(map(plain, ordered[:limit])), "more": len(ordered) > limit}


_FORMATTERS: Final[Mapping[str, Callable[[Measure, Result, Counter[Any]], Any]]] = {
    "count": lambda _, sums, __: sums["number"],
    "min": lambda _, sums, __: plain(sums.get("low")),
    "max": lambda _, sums, __: plain(sums.get("high")),
    "sum": lambda _, sums, __: plain(sums.get("total")),
    "mean": lambda _, sums, __: _divide(sums.get("total"), sums["number"]),
    "variance": lambda _, sums, __: _spread(variance, sums),
    "stddev": lambda _, sums, __: _spread(deviation, sums),
    "share": lambda measure, sums, _: _share(measure, sums),
    "percentiles": _percentiles,
    "histogram": lambda measure, _, counts: _histogram(measure.bounds, counts),
    "top": lambda measure, _, counts: _top(measure.body.limit, counts),
    "distinct": lambda measure, _, counts: _distinct(measure.body, counts),
}


def name_key(aggregation: Aggregation, dimensions: Sequence[Dimension], key: Key) -> dict[str, Any]:
    """Return a group's key by the names of its parts; None: there is no value."""
    parts = zip(aggregation.group_by, dimensions, key, strict=True)
    return {by.name: format_value(dimension, value) for by, dimension, value in parts}


def format_value(dimension: Dimension, value: Any) -> Any:
    """Return what a group is of: a value, the begin of a span of time, or the bounds of a bin."""
    if value is None:
        return None
    bounds: Any = dimension.by
    if dimension.operand == TIME:
        return received_at_of(bounds[value - 1])
    return plain(value) if bounds == "value" else format_bin(value, bounds)


def sort_groups(
    aggregation: Aggregation, groups: Sequence[Group]
) -> tuple[Sequence[Group], Sequence[Group]]:
    """Return the groups to show, in order, and the others."""
    ordered = sorted(groups, key=lambda group: [_last(part) for part in group.raw])
    is_in_order = any(by.time or by.histogram for by in aggregation.group_by[:1])
    # without a name by their inferences, the most first
    order = aggregation.order or ("" if is_in_order else "-")
    if order:
        values = [(_value(aggregation, group, order.removeprefix("-")), group) for group in ordered]
        present = [pair for pair in values if pair[0] is not None]
        present.sort(key=itemgetter(0), reverse=order.startswith("-"))
        absent = [group for value, group in values if value is None]
        ordered = [*(group for _, group in present), *absent]
    return ordered[: aggregation.limit], ordered[aggregation.limit :]


def _last(value: Any) -> tuple[bool, Any]:
    return (value is None, 0 if value is None else value)


def _value(aggregation: Aggregation, group: Group, name: str) -> Any:
    if not name:
        return group.inferences
    for by, raw in zip(aggregation.group_by, group.raw, strict=True):
        if by.name == name:
            return raw
    value = group.measures[name]
    if not isinstance(value, Mapping):
        return value
    # the first of several percentiles, or the length of any other list
    items = value.get("values", value.get("bins", ()))
    return items[0]["value"] if items and "at" in items[0] else len(items)
