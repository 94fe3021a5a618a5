"""Arithmetic with the results of Postgres' `numeric`, digit for digit, and of its doubles."""

import math
import re
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from typing import Final

from .typed import Calculation

MOST_EXPONENT: Final = 16
MOST_DIGITS: Final = 100_000
"""Digits before the point of any result; Postgres ends at 131,072."""
MOST_SCALE: Final = 16_000
"""Digits after the point; Postgres rounds a product at 16,383."""
QUOTIENT_SCALE: Final = 1000
"""Digits after the point that a quotient has at most."""
LEAST_DOUBLE, MOST_DOUBLE = Decimal("1e-300"), Decimal("1e300")
"""The bounds for the absolute value of a power's base, unless the base is zero."""
MOST_POWER: Final = Decimal(10**9)
"""The largest exponent."""
MOST_LOGARITHM: Final = 690.0
"""The largest natural logarithm of a power: up to it, the power is a double."""
SPELT: Final = r"^-?[0-9]{1,100}(\.[0-9]{1,100})?([eE][+-]?[0-9]{1,2})?$"
"""Texts that are read as the numbers they spell."""
_SPELT: Final = re.compile(SPELT.replace("$", r"\Z"))
_SIGNIFICANT, _GROUP = 16, 4
# Wide enough for all results that the check allows; a rounded result would be a bug, and raises.
EXACT: Final = Context(
    prec=2 * (MOST_DIGITS + MOST_SCALE), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact]
)


def calculate(op: Calculation, left: Decimal, right: Decimal) -> Decimal | None:
    """Return the result; None: there is none, as for a division by zero."""
    return _CALCULATIONS[op](_plain(left), _plain(right))


def scale_of(number: Decimal) -> int:
    """Return the number of digits after the point, as written: 1.50 has two."""
    return max(0, -_exponent(number))


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


def _plain(number: Decimal) -> Decimal:
    """Return the same number without a positive exponent, which Postgres does not have."""
    return EXACT.quantize(number, Decimal(1)) if _exponent(number) > 0 else number


def _divided(left: Decimal, right: Decimal) -> Decimal | None:
    if not right:
        return None
    return _quotient(left, right, _quotient_scale(left, right), rounded=True)


def _cut(left: Decimal, right: Decimal) -> Decimal | None:
    return _quotient(left, right, 0, rounded=False) if right else None


def _remainder(left: Decimal, right: Decimal) -> Decimal | None:
    cut = _cut(left, right)
    return None if cut is None else EXACT.subtract(left, EXACT.multiply(cut, right))


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    result = Decimal(1)
    for _ in range(int(exponent)):
        result = EXACT.multiply(result, base)
    return result


def _double_power(base: Decimal, exponent: Decimal) -> Decimal | None:
    """Compute a power in the same steps as the SQL, so that the doubles agree."""
    if not exponent:
        return Decimal(1)
    if not base:
        return Decimal(0) if exponent > 0 else None
    whole = exponent == exponent.to_integral_value()
    if not _is_double(base, MOST_DOUBLE) or not _is_double(exponent, MOST_POWER):
        return None
    if base < 0 and not whole:
        return None
    power, of = float(exponent), float(base)
    if abs(power * math.log(abs(of))) > MOST_LOGARITHM:
        return None
    return Decimal(repr(math.pow(of, power)).removesuffix(".0"))


def _is_double(number: Decimal, most: Decimal) -> bool:
    return LEAST_DOUBLE <= number.copy_abs() <= most


def spelt(text: str) -> Decimal | None:
    """Return the number that a text spells; None: it spells none."""
    return Decimal(text) if _SPELT.match(text) else None


def _quotient(left: Decimal, right: Decimal, scale: int, *, rounded: bool) -> Decimal:
    """Divide, with `scale` digits after the point, rounded half away from zero or truncated."""
    dividend = _whole(left) * 10 ** (scale + scale_of(right))
    divisor = _whole(right) * 10 ** scale_of(left)
    quotient, rest = divmod(abs(dividend), abs(divisor))
    if rounded and 2 * rest >= abs(divisor):
        quotient += 1
    signed = quotient if (dividend < 0) == (divisor < 0) else -quotient
    return EXACT.scaleb(Decimal(signed), -scale)


def _whole(number: Decimal) -> int:
    """Return all its digits as one integer."""
    return int(EXACT.scaleb(number, scale_of(number)))


def _quotient_scale(left: Decimal, right: Decimal) -> int:
    """Return the digits after the point of a quotient in Postgres (`select_div_scale`)."""
    (weight, first), (divisor_weight, divisor_first) = _leading(left), _leading(right)
    quotient_weight = weight - divisor_weight - (first <= divisor_first)
    scale = _SIGNIFICANT - quotient_weight * _GROUP
    return min(max(scale, scale_of(left), scale_of(right), 0), QUOTIENT_SCALE)


def _leading(number: Decimal) -> tuple[int, int]:
    """Return the position of the first digit to the base 10,000, from the point, and the digit."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _GROUP
    return weight, int(EXACT.scaleb(abs(number), -_GROUP * weight))


_CALCULATIONS: Final[Mapping[Calculation, Callable[[Decimal, Decimal], Decimal | None]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": _divided,
    "%": _remainder,
    "div": _cut,
    "^": _power,
    "power": _double_power,
}
