"""Bounds of histograms: half-open bins, exact."""

import math
from decimal import Decimal
from typing import Final

from .exact import WIDE, exact, quotient, whole_steps

_ROUND: Final = (Decimal(1), Decimal(2), Decimal(5), Decimal(10))


def automatic(low: Decimal, high: Decimal, bins: int) -> tuple[Decimal, ...]:
    """Bounds of about so many bins, never more than two over, that hold all of [low, high].

    Their width is 1, 2 or 5 times a power of ten, and they lie on its multiples.
    """
    step = _step(WIDE.subtract(high, low), bins)
    found = [whole_steps(low, step)]
    while found[-1] <= high:
        found.append(WIDE.add(found[-1], step))
    return tuple(found)


def _step(span: Decimal, bins: int) -> Decimal:
    least = quotient(span, bins) if span else Decimal(1)
    power = Decimal(1).scaleb(least.adjusted())
    return next(each for n in _ROUND if (each := WIDE.multiply(n, power)) >= least)


def as_double(bound: Decimal) -> float:
    """The smallest double whose shortest spelling is not below the bound."""
    found = float(bound)
    if math.isfinite(found) and exact(found) < bound:
        return math.nextafter(found, math.inf)
    return found
