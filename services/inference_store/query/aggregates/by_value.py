"""Bins of a metadata number over everything there is: the index has equal numbers together.

So they are counted first, and what is computed of a number is computed of each once.
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
    """Whether an index has the values of all that is asked for, in order."""
    return not query.conditions and operand.place == "metadata" and operand.kind == "number"


def bins_of(query: Query, here: DrivingIndex, operand: Operand, bins: CountedBy) -> Select[Any]:
    """How many values each bin has."""
    values = _values(query, here, operand)
    shown = bin_value(operand, values.c.g0, bins).label("g0")
    return select(shown, _whole(values.c.n).label("n")).group_by(shown)


def sketch_of(
    query: Query, here: DrivingIndex, operand: Operand, sums: AbstractSet[Sum]
) -> Select[Any]:
    """The logarithmic bins, and of each the sums of its values, as `sums_of` writes them."""
    values = _values(query, here, operand)
    value, n = values.c.g0, values.c.n
    shown = bin_value(operand, value, "sketch").label("g0")
    found = {
        "low": func.min(value),
        "high": func.max(value),
        "total": func.sum(value * n),
        "squares": func.sum(value * value * n),
    }
    columns = [_whole(n).label("n"), _whole(n), *(found[each] for each in sorted(sums))]
    return select(shown, *columns).group_by(shown)


def ends_of(scan_range: ScanRange, operand: Operand) -> Select[Any]:
    """The smallest and the largest value, which an index has at its ends; NULL: there is none."""
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
