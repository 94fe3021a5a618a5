"""True numbers against predicted ones."""

from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from math import isfinite, sqrt
from typing import Any, NamedTuple

from inference_store.query.aggregates.bins import WIDE, quotient
from inference_store.query.aggregates.statement import NUMBER, Column

from .asking import Asked
from .evaluation import Figure, NumbersReport, Slices
from .figures import around_mean, divide
from .truth_rows import Rows, column, select_numbers

_ZERO = Decimal(0)


class Sums(NamedTuple):
    """Exact sums of what is true, of the errors, and of their squares and sizes."""

    truth: Decimal = _ZERO
    truth_squares: Decimal = _ZERO
    error: Decimal = _ZERO
    error_squares: Decimal = _ZERO
    distance: Decimal = _ZERO


async def evaluate_numbers(asked: Asked) -> tuple[NumbersReport, Slices | None]:
    """Return the report, and the mean distance of each slice."""
    rows = partial(select_numbers, asked.sets)
    columns = _list_columns(rows)
    found = (await asked.add_up(rows, columns)).get((), {NUMBER: 0})
    report = report_numbers(found[NUMBER], _read(columns, found))
    slices = await asked.add_up_slices(rows, *columns)
    return report, asked.show_slices(
        "mae", report.mae, slices, lambda sums: _find_mae(sums[NUMBER], _read(columns, sums))
    )


def _list_columns(rows: Rows) -> tuple[Column, ...]:
    truth, error, distance = (
        column(rows, name, "number", "exact") for name in ("value", "error", "distance")
    )
    return (
        *(Column(truth, "total"), Column(truth, "squares")),
        *(Column(error, "total"), Column(error, "squares"), Column(distance, "total")),
    )


def _read(columns: tuple[Column, ...], sums: Mapping[Column, Any]) -> Sums:
    return Sums(*(sums.get(one) or _ZERO for one in columns))


def report_numbers(number: int, sums: Sums) -> NumbersReport:
    """Return the figures of so many pairs."""
    # exact, for it is the small difference of large numbers
    spread = WIDE.subtract(
        WIDE.multiply(number, sums.truth_squares), WIDE.multiply(sums.truth, sums.truth)
    )
    unexplained = WIDE.multiply(number, sums.error_squares)
    return NumbersReport(
        mae=_find_mae(number, sums),
        rmse=_finite(sqrt(float(sums.error_squares) / number)) if number else None,
        bias=_find_mean(number, sums.error, sums.error_squares),
        r2=_finite(1 - float(quotient(unexplained, spread))) if spread else None,
    )


def _find_mae(number: int, sums: Sums) -> Figure:
    return _find_mean(number, sums.distance, sums.error_squares)


def _find_mean(number: int, total: Decimal, squares: Decimal) -> Figure:
    mean, interval = divide(float(total), number), around_mean(number, float(total), float(squares))
    if mean is None or not isfinite(mean) or not all(map(isfinite, interval or ())):
        return Figure(value=None, interval=None, n=number)  # beyond what JSON's numbers can say
    return Figure(value=mean, interval=interval, n=number)


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
