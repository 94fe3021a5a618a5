"""The number of digits that a calculation may have, known before anything is calculated."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, NamedTuple

from inference_store.inference.metadata import MetadataCaps

from .arithmetic import MOST_DIGITS, MOST_SCALE, QUOTIENT_SCALE, scale_of
from .typed import Calculated, Calculation, Constant, Metadata, Value

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


def written(number: Decimal) -> Digits:
    """Return the digits of a literal number."""
    return Digits(max(1, number.adjusted() + 1), scale_of(number))


def digits(value: Value) -> Digits:
    """Return the most digits that a value may have."""
    match value:
        case Constant(value=Decimal() as number):
            return written(number)
        case Metadata():
            return _STORED
        case Calculated(op="^", left=left, right=Constant(value=Decimal() as exponent)):
            before, after = digits(left)
            return Digits(max(1, before * int(exponent)), after * int(exponent))
        case Calculated(op="power"):
            return _DOUBLE
        case Calculated():
            return _DIGITS[value.op](digits(value.left), digits(value.right))
        case _:
            return _DOUBLE


def _sum(left: Digits, right: Digits) -> Digits:
    return Digits(max(left.before, right.before) + 1, max(left.after, right.after))


def _product(left: Digits, right: Digits) -> Digits:
    return Digits(left.before + right.before, left.after + right.after)


def _quotient(left: Digits, right: Digits) -> Digits:
    return Digits(left.before + right.after + 1, QUOTIENT_SCALE)


def _remainder(left: Digits, right: Digits) -> Digits:
    """Return the digits of a remainder: Postgres computes the whole quotient first."""
    return Digits(left.before + right.after + 1, max(left.after, right.after))


_DIGITS: Final[Mapping[Calculation, Callable[[Digits, Digits], Digits]]] = {
    "+": _sum,
    "-": _sum,
    "*": _product,
    "/": _quotient,
    "div": _quotient,
    "%": _remainder,
}
