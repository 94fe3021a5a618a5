"""Calculations: exact, with bounded digits; those of literals are evaluated during the check."""

from decimal import Decimal
from typing import Final, cast

from inference_store.query.cql2.tree import Operation
from inference_store.query.filters.arithmetic import MOST_EXPONENT, calculate
from inference_store.query.filters.digits import digits
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Calculated, Calculation, Constant, Value

MOST_WRITTEN: Final = 4_000
"""Digits of a calculation that is evaluated during the check."""


def calculated(node: Operation, left: Value, right: Value, checking: FilterCheck) -> Value:
    """Return the calculation of two numbers. Raises InvalidFilter for too many digits."""
    calculation = _make_calculation(node, left, right)
    _refuse_digits(node, calculation, checking)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _settled(node, calculation, left, right, checking)
    return calculation


def _make_calculation(node: Operation, left: Value, right: Value) -> Calculated:
    """Return the calculation; `^` is exact if it can be, else it becomes `power`, a double."""
    calculation = Calculated(cast(Calculation, node.op.lower()), left, right)
    if calculation.op == "^" and (not _is_few(right) or digits(calculation).too_many):
        return Calculated("power", left, right)
    return calculation


def _is_few(exponent: Value) -> bool:
    """Check whether it is a literal whole number, small enough to multiply the power out."""
    number = exponent.value if isinstance(exponent, Constant) else None
    if not isinstance(number, Decimal) or not 0 <= number <= MOST_EXPONENT:
        return False
    return number == number.to_integral_value()


def _settled(
    node: Operation, calculation: Calculated, left: Constant, right: Constant, checking: FilterCheck
) -> Value:
    """Evaluate a calculation of constants; without a result it stays, and is NULL."""
    if sum(digits(calculation)) > MOST_WRITTEN:
        message = f"a calculation that is written out comes to at most {MOST_WRITTEN} digits"
        raise meaningless(node, checking.source, message)
    assert isinstance(left.value, Decimal)
    assert isinstance(right.value, Decimal)
    result = calculate(calculation.op, left.value, right.value)
    return calculation if result is None else Constant("number", result)


def _refuse_digits(node: Operation, calculation: Value, checking: FilterCheck) -> None:
    if digits(calculation).too_many:
        message = "the calculation may come to more digits than can be calculated exactly"
        raise meaningless(node, checking.source, message)
