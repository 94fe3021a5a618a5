"""Formats computed measures, and sorts groups, for the answer."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from pydantic import Field

from inference_store.inference.events.event import received_at_of
from inference_store.inference.field_docs import Hidden, Stored

from .aggregation import Aggregation, Bound, MeasureBody, Sum
from .bins import METHOD, deviation, percentile, plain, quotient, value_of, variance
from .operands import TIME
from .statement import Dimension, Key

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


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """The result of one measure in one group. `counts`: of values or of bins."""

    sums: Mapping[Sum, Any]
    counts: Counter[Any]
    bounds: Sequence[Bound] = ()
    approximate: bool = False

    @property
    def number(self) -> int:
        """The number of values, or of inferences."""
        number: int = self.sums.get("number", 0)
        return number


def format_measure(measure: MeasureBody, result: MeasureResult) -> Any:
    """Return a measure's value, for JSON."""
    return _FORMATTERS[measure.function](measure, result)


def format_bin(number: int, bounds: Sequence[Bound]) -> dict[str, Any]:
    """Return the bounds of a bin, `from` inclusive and `to` exclusive; None: there is no bound."""
    return {
        "from": plain(bounds[number - 1]) if number > 0 else None,
        "to": plain(bounds[number]) if number < len(bounds) else None,
    }


def _mean(_: MeasureBody, result: MeasureResult) -> Any:
    number = result.number
    return plain(quotient(result.sums["total"], number)) if number else None


def _spread(compute: Callable[[int, Decimal, Decimal], Decimal], result: MeasureResult) -> Any:
    number, sums = result.number, result.sums
    return plain(compute(number, sums["total"], sums["squares"])) if number > 1 else None


def _share(measure: MeasureBody, result: MeasureResult) -> Any:
    if not result.number:
        return None
    number = result.sums["true"]
    number = number if measure.expected else result.number - number
    return plain(quotient(Decimal(number), result.number))


def _percentiles(measure: MeasureBody, result: MeasureResult) -> Any:
    values = [{"at": plain(at), "value": _percentile(result, at)} for at in measure.at]
    method = METHOD if result.approximate else EXACT_METHOD
    return {"values": values, "approximate": result.approximate, "method": method}


def _percentile(result: MeasureResult, at: Decimal) -> Any:
    if not result.counts:
        return None
    value = percentile(result.counts, at)
    if result.approximate:
        return plain(min(max(value_of(value), result.sums["low"]), result.sums["high"]))
    return plain(value)


def _histogram(_: MeasureBody, result: MeasureResult) -> Any:
    counts, last = result.counts, len(result.bounds)
    bins = [{**format_bin(n, result.bounds), "count": counts[n]} for n in range(1, last)]
    return {"bins": bins, "below": counts[0], "above": counts[last] if last else 0}


def _top(measure: MeasureBody, result: MeasureResult) -> Any:
    ordered = sorted(result.counts.items(), key=lambda item: (-item[1], item[0]))
    first = ordered[: measure.limit]
    values = [{"value": plain(value), "count": count} for value, count in first]
    return {"values": values, "others": sum(count for _, count in ordered[measure.limit :])}


def _distinct(measure: MeasureBody, result: MeasureResult) -> Any:
    prefix = measure.prefix
    ordered = sorted(
        value
        for value in result.counts
        if not prefix or (isinstance(value, str) and value.startswith(prefix))
    )
    values = [plain(value) for value in ordered[: measure.limit]]
    return {"values": values, "more": len(ordered) > measure.limit}


_FORMATTERS: Final[Mapping[str, Callable[[MeasureBody, MeasureResult], Any]]] = {
    "count": lambda _, result: result.number,
    "min": lambda _, result: plain(result.sums.get("low")),
    "max": lambda _, result: plain(result.sums.get("high")),
    "sum": lambda _, result: plain(result.sums.get("total")),
    "mean": _mean,
    "variance": lambda _, result: _spread(variance, result),
    "stddev": lambda _, result: _spread(deviation, result),
    "share": _share,
    "percentiles": _percentiles,
    "histogram": _histogram,
    "top": _top,
    "distinct": _distinct,
}


def name_key(aggregation: Aggregation, dimensions: Sequence[Dimension], key: Key) -> dict[str, Any]:
    """Return a group's key by the names of its parts; None: there is no value."""
    parts = zip(aggregation.group_by, dimensions, key, strict=True)
    return {by.name: _format_value(dimension, value) for by, dimension, value in parts}


def _format_value(dimension: Dimension, value: Any) -> Any:
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
    name, largest_first = _order(aggregation)
    if name is not None:
        present = [group for group in ordered if _value(aggregation, group, name) is not None]
        absent = [group for group in ordered if _value(aggregation, group, name) is None]
        present.sort(key=lambda group: _value(aggregation, group, name), reverse=largest_first)
        ordered = present + absent
    return ordered[: aggregation.limit], ordered[aggregation.limit :]


def _last(value: Any) -> tuple[bool, Any]:
    return (value is None, 0 if value is None else value)


def _order(aggregation: Aggregation) -> tuple[str | None, bool]:
    """Return the name to order by, and whether the largest comes first.

    None: by the key, as for spans of time and bins. Empty: by the number of inferences.
    """
    if aggregation.order is not None:
        return aggregation.order.removeprefix("-"), aggregation.order.startswith("-")
    by_key = any(by.time or by.histogram for by in aggregation.group_by[:1])
    return (None, False) if by_key else ("", True)


def _value(aggregation: Aggregation, group: Group, name: str) -> Any:
    if not name:
        return group.inferences
    for index, by in enumerate(aggregation.group_by):
        if by.name == name:
            return group.raw[index]
    measure = next(measure for measure in aggregation.measures if measure.name == name)
    value = group.measures[name]
    if not isinstance(value, Mapping):
        return value
    # the first of several percentiles, or the length of any other list
    items = value.get("values", value.get("bins", ()))
    return items[0]["value"] if measure.function == "percentiles" and items else len(items)
