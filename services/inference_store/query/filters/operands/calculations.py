"""Calculations: exact while their digits are bounded, and settled where all is written out."""

from decimal import Decimal
from typing import Final, cast

from inference_store.query.cql2.tree import Operation
from inference_store.query.filters.arithmetic import MOST_EXPONENT, calculate
from inference_store.query.filters.checking import Checking
from inference_store.query.filters.digits import digits
from inference_store.query.filters.refusals import meaningless
from inference_store.query.filters.typed import Calculated, Calculation, Constant, Value

MOST_WRITTEN: Final = 4_000
"""Digits of what is calculated while a filter is checked."""


def calculated(node: Operation, left: Value, right: Value, checking: Checking) -> Value:
    """The calculation of two numbers. Raises InvalidFilter for too many digits."""
    made = _made(node, left, right)
    _refuse_digits(node, made, checking)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _settled(node, made, left, right, checking)
    return made


def _made(node: Operation, left: Value, right: Value) -> Calculated:
    """`^` is exact where it can be, as `power` it is a double."""
    made = Calculated(cast(Calculation, node.op.lower()), left, right)
    if made.op == "^" and (not _is_few(right) or digits(made).too_many):
        return Calculated("power", left, right)
    return made


def _is_few(exponent: Value) -> bool:
    """A whole number that is written out, and that a product can be made of so many factors."""
    number = exponent.value if isinstance(exponent, Constant) else None
    if not isinstance(number, Decimal) or not 0 <= number <= MOST_EXPONENT:
        return False
    return number == number.to_integral_value()


def _settled(
    node: Operation, made: Calculated, left: Constant, right: Constant, checking: Checking
) -> Value:
    """Constants are calculated here; without a result it stays, and is NULL."""
    if sum(digits(made)) > MOST_WRITTEN:
        message = f"a calculation that is written out comes to at most {MOST_WRITTEN} digits"
        raise meaningless(node, checking.source, message)
    assert isinstance(left.value, Decimal)
    assert isinstance(right.value, Decimal)
    result = calculate(made.op, left.value, right.value)
    return made if result is None else Constant("number", result)


def _refuse_digits(node: Operation, made: Value, checking: Checking) -> None:
    if digits(made).too_many:
        message = "the calculation may come to more digits than can be calculated exactly"
        raise meaningless(node, checking.source, message)
