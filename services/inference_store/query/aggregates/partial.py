"""Computes a part of an aggregate, and merges parts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Numeric, Select, Text, cast, func

from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query

from .aggregation import Bound
from .exact import WIDE, exact
from .functions import Sum
from .operand import Operand, raw
from .rows import Dimension, Rows, in_bin
from .sketch import bin_of

Key: TypeAlias = tuple[Any, ...]
CountedBy: TypeAlias = Literal["value", "sketch"] | tuple[Bound, ...]


@dataclass(slots=True)
class PartialSums:
    """Sums of a group's values: count, ends, sum, sum of squares, and the count of true ones."""

    number: int = 0
    low: Any = None
    high: Any = None
    total: Decimal = Decimal(0)
    squares: Decimal = Decimal(0)
    true: int = 0

    def add(self, number: int, sums: dict[Sum, Any]) -> None:
        """Add the sums of another part."""
        if not number:
            return
        self.low = _choose_end(min, self.low, exact(sums.get("low")))
        self.high = _choose_end(max, self.high, exact(sums.get("high")))
        self.total = WIDE.add(self.total, Decimal(sums.get("total") or 0))
        self.squares = WIDE.add(self.squares, Decimal(sums.get("squares") or 0))
        self.true += sums.get("true") or 0
        self.number += number

    def merge(self, part: "PartialSums") -> None:
        """Add another part."""
        self.add(
            part.number,
            {
                "low": part.low,
                "high": part.high,
                "total": part.total,
                "squares": part.squares,
                "true": part.true,
            },
        )


def _choose_end(chosen: Callable[[Any, Any], Any], held: Any, other: Any) -> Any:
    if held is None or other is None:
        return other if held is None else held
    return chosen(held, other)


Counts: TypeAlias = dict[Key, Counter[Any]]


@dataclass(slots=True)
class PartialAggregate:
    """The inferences of each group, and the sums of properties that were read with them."""

    inferences: Counter[Key] = field(default_factory=Counter)
    sums: dict[Operand, dict[Key, PartialSums]] = field(default_factory=dict)


RequestedSums: TypeAlias = dict[Operand, frozenset[Sum]]


def select_sums(
    query: Query, here: DrivingIndex, groups: Sequence[Dimension], requested_sums: RequestedSums
) -> Select[Any]:
    """Count the rows of each group, and sum each operand; all operands are in one table."""
    leader = next((operand for operand in requested_sums if operand.source != "inference"), None)
    rows = Rows(query, here, leader)
    return rows.grouped(
        [rows.group(dimension) for dimension in groups], _columns(rows, requested_sums)
    )


def select_sums_of_bins(
    query: Query, here: DrivingIndex, operand: Operand, sums: frozenset[Sum]
) -> Select[Any]:
    """Select the sums of each logarithmic bin of an operand that is not a property."""
    rows = Rows(query, here, operand)
    own = raw(operand, rows.measured(operand))
    return rows.grouped([bin_of(own)], _columns(rows, {operand: sums})).where(own.is_not(None))


def _columns(rows: Rows, requested_sums: RequestedSums) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [func.count().label("n")]
    for operand, sums in requested_sums.items():
        row = rows.measured(operand)
        columns.append(func.count(raw(operand, row)))
        columns += [_select_sum(name, operand, row) for name in sorted(sums)]
    return columns


def _select_sum(name: Sum, operand: Operand, row: Any) -> ColumnElement[Any]:
    if name == "true":
        return func.count().filter(raw(operand, row).is_(True))
    value = _order_value(operand, row)
    if name in {"total", "squares"}:
        if operand.stored == "double":  # the decimal that its shortest spelling is
            value = cast(value, Text())
        number = cast(value, Numeric())
        return func.sum(number if name == "total" else number * number)
    return func.min(value) if name == "low" else func.max(value)


def _order_value(operand: Operand, row: Any) -> Any:
    """Return the value that is compared for the smallest: label names, whole texts."""
    if operand.source == "metadata":
        if operand.kind == "string":
            return func.coalesce(row.c.whole, row.c.value)
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)


def select_counts(
    query: Query,
    here: DrivingIndex,
    groups: Sequence[Dimension],
    operand: Operand,
    value: CountedBy,
) -> Select[Any]:
    """Count each value (`value`), logarithmic bin (`sketch`) or bin (bounds) in each group."""
    rows = Rows(query, here, operand)
    by = [rows.group(dimension) for dimension in groups]
    own = raw(operand, rows.measured(operand))
    counts = rows.grouped([*by, bin_value(operand, own, value)], [func.count().label("n")])
    return counts.where(own.is_not(None))


def bin_value(operand: Operand, value: Any, by: CountedBy) -> Any:
    """Return the value itself, or its bin."""
    if by == "value":
        return value
    return bin_of(value) if by == "sketch" else in_bin(operand, value, by)
