"""Arithmetic of literal numbers and places; bounds within which that of Postgres is exact."""

from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, Inexact
from typing import Final, NamedTuple

from inference_store.inference.metadata import MetadataCaps

from .typed import Applied, Constant, Function, Metadata, Value

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
_SIGNIFICANT: Final = 16
# Wide enough for all results that the check allows; a rounded result would be a bug, and raises.
EXACT: Final = Context(
    prec=2 * (MOST_DIGITS + MOST_SCALE), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact]
)


def calculate(op: Function, left: Decimal, right: Decimal) -> Decimal | None:
    """Return the exact result for two literals; None: there is none, or it is left to Postgres."""
    calculation = _CALCULATIONS.get(op)
    if calculation is None or (op in _DIVIDE and not right):
        return None
    try:
        return calculation(left, right)
    except Inexact:
        return None


def exact(number: Decimal | float) -> Decimal:
    """Return the number that is compared: for a double, the decimal of its shortest spelling."""
    if isinstance(number, float):
        return Decimal(repr(number).removesuffix(".0"))
    return Decimal(number)


def scale_of(number: Decimal) -> int:
    """Return the number of digits after the point, as written: 1.50 has two."""
    return max(0, -_exponent(number))


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return exponent


_DIVIDE: Final = frozenset({"/", "%", "div"})
# Postgres rounds a quotient of more digits.
_QUOTIENT: Final = Context(prec=_SIGNIFICANT, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_CALCULATIONS: Final[Mapping[Function, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": EXACT.add,
    "-": EXACT.subtract,
    "*": EXACT.multiply,
    "/": _QUOTIENT.divide,
    "%": EXACT.remainder,
    "div": EXACT.divide_int,
}


_CAPS: Final = MetadataCaps()


class Digits(NamedTuple):
    """Digits before the point and after it, at most."""

    before: int
    after: int

    @property
    def too_many(self) -> bool:
        """Check whether Postgres might not hold such a number exactly."""
        return self.before > MOST_DIGITS or self.after > MOST_SCALE


_STORED: Final = Digits(_CAPS.digits + _CAPS.exponent, _CAPS.digits + _CAPS.exponent)
_DOUBLE: Final = Digits(310, 345)


def digits_of_literal(number: Decimal) -> Digits:
    """Return the digits of a literal number."""
    return Digits(max(1, number.adjusted() + 1), scale_of(number))


def digits(value: Value) -> Digits:
    """Return the most digits that a value may have."""
    match value:
        case Constant(value=Decimal() as number):
            return digits_of_literal(number)
        case Metadata():
            return _STORED
        case Applied("^", (base, Constant(value=Decimal() as exponent))):
            before, after = digits(base)
            return Digits(max(1, before * int(exponent)), after * int(exponent))
        case Applied(op, args) if op in _DIGITS:
            return _DIGITS[op](*map(digits, args))
        case _:
            return _DOUBLE


_DIGITS: Final[Mapping[Function, Callable[[Digits, Digits], Digits]]] = {
    **dict.fromkeys(
        ("+", "-"), lambda a, b: Digits(max(a.before, b.before) + 1, max(a.after, b.after))
    ),
    "*": lambda a, b: Digits(a.before + b.before, a.after + b.after),
    **dict.fromkeys(("/", "div"), lambda a, b: Digits(a.before + b.after + 1, QUOTIENT_SCALE)),
    # Postgres computes the whole quotient first.
    "%": lambda a, b: Digits(a.before + b.after + 1, max(a.after, b.after)),
}


EARTH_RADIUS_METRES: Final = 6_371_008.8
DECIMALS_OF_DEGREES: Final = 30
"""Decimals to which coordinates are rounded for a distance: doubles underflow beyond them."""


def round_degrees(degrees: Decimal) -> Decimal:
    """Round to DECIMALS_OF_DEGREES."""
    if scale_of(degrees) <= DECIMALS_OF_DEGREES:
        return degrees
    wide = EXACT.copy()
    wide.clear_traps()
    return degrees.quantize(Decimal(1).scaleb(-DECIMALS_OF_DEGREES), ROUND_HALF_UP, wide)
