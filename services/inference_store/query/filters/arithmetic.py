"""Arithmetic of numbers that are written out, and the digits that Postgres has to hold."""

from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation
from typing import Final

from inference_store.query.cql2.literals import CAPS

from .typed import Applied, Constant, Function, Metadata, Value

MOST_DIGITS: Final = 16_000
"""Digits of a result on either side of the point: Postgres rounds a product at 16,383."""
_MOST_SETTLED: Final = 2_000
"""Digits of a calculation that is done here, and not by Postgres."""
_MOST_EXPONENT: Final = 16
_ROUNDED_DIGITS, _DOUBLE_DIGITS = 1_000, 350
_STORED_DIGITS: Final = CAPS.digits + CAPS.exponent


def _precise(digits: int) -> Context:
    traps = [Inexact, DivisionByZero, InvalidOperation]
    return Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=traps)


EXACT: Final = _precise(2 * MOST_DIGITS)
_CALCULATIONS: Final[Mapping[Function, Callable[[Decimal, Decimal], Decimal]]] = {
    **{"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply, "^": EXACT.power},
    **{"%": EXACT.remainder, "div": EXACT.divide_int},
    "/": _precise(16).divide,  # Postgres rounds a quotient of more digits
}


def calculate(of: Applied) -> Value:
    """Return the exact result of two literals; the same value if there is none, or if it is left to
    Postgres."""
    match of.args:
        case Constant(value=Decimal() as left), Constant(value=Decimal() as right) if (
            of.function in _CALCULATIONS and digits(of) <= _MOST_SETTLED
        ):
            try:
                return Constant("number", _CALCULATIONS[of.function](left, right))
            except ArithmeticError:
                return of
    return of


def is_exact_power(base: Value, exponent: Value) -> bool:
    """Check whether the exponent is a literal whole number, so small that the power is multiplied
    out."""
    number = exponent.value if isinstance(exponent, Constant) else None
    is_few = isinstance(number, Decimal) and number in range(1, _MOST_EXPONENT + 1)
    return is_few and digits(Applied("^", (base, exponent))) <= MOST_DIGITS


def digits(value: Value) -> int:
    """Return the digits on either side of the point that a value has at most."""
    match value:
        case Constant(value=Decimal() as number):
            exponent = number.as_tuple().exponent
            assert isinstance(exponent, int)
            return max(1, number.adjusted() + 1, -exponent)
        case Applied("^", (base, Constant(value=Decimal() as times))):
            return digits(base) * int(times)
        case Applied(function, args) if function in _DIGITS:
            return _DIGITS[function](*map(digits, args))
    return _STORED_DIGITS if isinstance(value, Metadata) else _DOUBLE_DIGITS


_DIGITS: Final[Mapping[Function, Callable[[int, int], int]]] = {
    **dict.fromkeys(("+", "-"), lambda a, b: max(a, b) + 1),
    "*": lambda a, b: a + b,
    # `%` computes the quotient first
    **dict.fromkeys(("/", "div", "%"), lambda a, b: max(a + b + 1, _ROUNDED_DIGITS)),
    "power": lambda _, __: _ROUNDED_DIGITS,
}
