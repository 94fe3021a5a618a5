"""Exact numbers: sums of any digits, means, and how they are written."""

from datetime import UTC, datetime
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

# Numbers have up to 1,000 digits and exponents up to 400: a sum of them fits by far.
WIDE: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DOWN: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_FLOOR)
_QUOTIENT: Final = Context(prec=34, Emax=MAX_EMAX, Emin=MIN_EMIN)
# Of what a root is drawn of: more digits than the root has.
_RADICAND: Final = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MOST_ZEROS = 20


def exact(value: Any) -> Any:
    """A number from Postgres as a Decimal; a double is what its shortest spelling says. The driver
    gives the first and the last instant there is without their time zone."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    if isinstance(value, float):
        return WIDE.plus(Decimal(repr(value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value


def quotient(total: Decimal, number: int | Decimal) -> Decimal:
    """To 34 digits."""
    return _QUOTIENT.divide(total, Decimal(number))


def variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Of a sample of at least two values, by their sum and that of their squares; to 34 digits."""
    return _QUOTIENT.plus(_variance(number, total, squares))


def deviation(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """The root of the variance, to 34 digits."""
    return _QUOTIENT.sqrt(_variance(number, total, squares))


def _variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """(n·Σx² − (Σx)²) / (n·(n − 1)): the numerator is exact."""
    spread = WIDE.subtract(WIDE.multiply(number, squares), WIDE.multiply(total, total))
    return _RADICAND.divide(spread, Decimal(number * (number - 1)))


def whole_steps(value: Decimal, step: Decimal) -> Decimal:
    """The largest multiple of `step` that is not above the value."""
    steps = _DOWN.divide(value, step).to_integral_value(ROUND_FLOOR, _DOWN)
    return WIDE.multiply(steps, step)


def plain(value: Any) -> Any:
    """A number without zeros at its end, and without an exponent where that is short."""
    if not isinstance(value, Decimal):
        return value
    short = WIDE.normalize(value)
    exponent = short.as_tuple().exponent
    if isinstance(exponent, int) and 0 < exponent <= _MOST_ZEROS:
        return short.quantize(Decimal(1), context=WIDE)
    return WIDE.plus(short)
