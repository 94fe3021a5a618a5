"""True numbers against predicted ones."""

from collections.abc import Mapping
from decimal import Decimal
from math import sqrt
from typing import Any

from inference_store.query.aggregates.bins import WIDE, quotient
from inference_store.query.aggregates.statement import NUMBER, Column

from .asking import Asked
from .evaluation import Figure, NumbersReport, Slices
from .figures import around_mean, divide
from .truth_rows import Values, column


async def evaluate_numbers(asked: Asked) -> tuple[NumbersReport, Slices | None]:
    """Return the report, and the mean distance of each slice."""
    rows = Values(asked.sets)
    truth, error, distance = (
        column(rows, name, "number", "exact") for name in ("truth", "error", "distance")
    )
    total, squares = Column(truth, "total"), Column(truth, "squares")
    errors, squared, far = (
        Column(error, "total"),
        Column(error, "squares"),
        Column(distance, "total"),
    )
    columns = total, squares, errors, squared, far
    sums: Mapping[Column, Any] = (await asked.add_up(rows, columns)).get((), {NUMBER: 0})
    number = sums[NUMBER]
    of_truth, of_squares, of_errors, of_squared, of_far = (
        sums.get(one) or Decimal(0) for one in columns
    )
    # exact: the difference of two large sums
    spread = WIDE.subtract(WIDE.multiply(number, of_squares), WIDE.multiply(of_truth, of_truth))
    report = NumbersReport(
        mae=_mean(number, of_far, of_squared),
        rmse=sqrt(float(of_squared) / number) if number else None,
        bias=_mean(number, of_errors, of_squared),
        r2=1 - float(quotient(WIDE.multiply(number, of_squared), spread)) if spread else None,
    )
    found = await asked.add_up_slices(rows, far, squared)
    return report, asked.show_slices(
        "mae", report.mae, found, lambda of: _mean(of[NUMBER], of[far], of[squared])
    )


def _mean(number: int, total: Decimal, squares: Decimal) -> Figure:
    mean = divide(float(total), number)
    interval = around_mean(number, float(total), float(squares))
    return Figure(value=mean, interval=interval, n=number)
