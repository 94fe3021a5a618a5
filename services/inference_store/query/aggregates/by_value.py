"""Bins of a metadata number over all inferences: the index has equal numbers together.

So equal numbers are counted first, and each different number is then processed once.
"""

from collections.abc import Set as AbstractSet
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FromClause, Select, cast, func, select

from inference_store.index.tables import SIDE_TABLES
from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query
from inference_store.query.scan_range import ScanRange

from .functions import Sum
from .operand import Operand
from .partial import CountedBy, bin_value
from .rows import Rows


def values_lead(query: Query, operand: Operand) -> bool:
    """Check whether an index has all values of the operand for the query, in order."""
    return not query.conditions and operand.source == "metadata" and operand.kind == "number"


def bins_of(query: Query, here: DrivingIndex, operand: Operand, bins: CountedBy) -> Select[Any]:
    """Count the values in each bin."""
    values = _values(query, here, operand)
    group = bin_value(operand, values.c.g0, bins).label("g0")
    return select(group, _whole(values.c.n).label("n")).group_by(group)


def sketch_of(
    query: Query, here: DrivingIndex, operand: Operand, sums: AbstractSet[Sum]
) -> Select[Any]:
    """Select the sums of the values in each logarithmic bin, in the order of `select_sums`."""
    values = _values(query, here, operand)
    value, n = values.c.g0, values.c.n
    group = bin_value(operand, value, "sketch").label("g0")
    sums_by_name = {
        "low": func.min(value),
        "high": func.max(value),
        "total": func.sum(value * n),
        "squares": func.sum(value * value * n),
    }
    columns = [_whole(n).label("n"), _whole(n), *(sums_by_name[name] for name in sorted(sums))]
    return select(group, *columns).group_by(group)


def ends_of(scan_range: ScanRange, operand: Operand) -> Select[Any]:
    """Select the smallest and the largest value, at the ends of an index; NULL if there is none."""
    row = SIDE_TABLES[operand.kind]
    value = row.c.value
    ends = select(func.min(value).label("low"), func.max(value).label("high"))
    return ends.where(scan_range.of(row), row.c.key == operand.key)


def _values(query: Query, here: DrivingIndex, operand: Operand) -> FromClause:
    rows = Rows(query, here, operand)
    value = rows.measured(operand).c.value
    return rows.grouped([value], [func.count().label("n")]).subquery()


def _whole(number: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.sum(number), BigInteger())
