"""Exact numbers: sums of any digits, means, and how they are written."""

from datetime import UTC, datetime
from decimal import MAX_EMAX, MIN_EMIN, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

# Numbers have up to 1,000 digits and exponents up to 400: a sum of them fits by far.
WIDE: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DOWN: Final = Context(prec=6_000, Emax=MAX_EMAX, Emin=MIN_EMIN, rounding=ROUND_FLOOR)
_QUOTIENT: Final = Context(prec=34, Emax=MAX_EMAX, Emin=MIN_EMIN)
# For the radicand of a root: more digits than the root has.
_RADICAND: Final = Context(prec=80, Emax=MAX_EMAX, Emin=MIN_EMIN)
_MOST_ZEROS = 20


def exact(value: Any) -> Any:
    """Return a number from Postgres as a Decimal; for a double, the value of its shortest spelling.

    The driver returns the first and the last possible instant without a time zone: it is added.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    if isinstance(value, float):
        return WIDE.plus(Decimal(repr(value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    return value


def quotient(total: Decimal, number: int | Decimal) -> Decimal:
    """Divide, to 34 digits."""
    return _QUOTIENT.divide(total, Decimal(number))


def variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Return the variance, to 34 digits, of a sample of at least two values.

    `total`: their sum; `squares`: the sum of their squares.
    """
    return _QUOTIENT.plus(_variance(number, total, squares))


def deviation(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Return the square root of the variance, to 34 digits."""
    return _QUOTIENT.sqrt(_variance(number, total, squares))


def _variance(number: int, total: Decimal, squares: Decimal) -> Decimal:
    """Compute (n·Σx² − (Σx)²) / (n·(n − 1)); the numerator is exact."""
    spread = WIDE.subtract(WIDE.multiply(number, squares), WIDE.multiply(total, total))
    return _RADICAND.divide(spread, Decimal(number * (number - 1)))


def whole_steps(value: Decimal, step: Decimal) -> Decimal:
    """Return the largest multiple of `step` that is not above the value."""
    steps = _DOWN.divide(value, step).to_integral_value(ROUND_FLOOR, _DOWN)
    return WIDE.multiply(steps, step)


def plain(value: Any) -> Any:
    """Return a number without trailing zeros, and without an exponent if it stays short."""
    if not isinstance(value, Decimal):
        return value
    short = WIDE.normalize(value)
    exponent = short.as_tuple().exponent
    if isinstance(exponent, int) and 0 < exponent <= _MOST_ZEROS:
        return short.quantize(Decimal(1), context=WIDE)
    return WIDE.plus(short)
