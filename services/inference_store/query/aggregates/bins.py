"""Bounds of histograms: half-open bins, exact."""

import math
from decimal import Decimal
from typing import Final

from .exact import WIDE, exact, quotient, whole_steps

_ROUND: Final = (Decimal(1), Decimal(2), Decimal(5), Decimal(10))


def automatic(low: Decimal, high: Decimal, bins: int) -> tuple[Decimal, ...]:
    """Return bounds of about `bins` bins, at most two more, that contain all of [low, high].

    Their width is 1, 2 or 5 times a power of ten, and they lie on its multiples.
    """
    step = _step(WIDE.subtract(high, low), bins)
    bounds = [whole_steps(low, step)]
    while bounds[-1] <= high:
        bounds.append(WIDE.add(bounds[-1], step))
    return tuple(bounds)


def _step(span: Decimal, bins: int) -> Decimal:
    least = quotient(span, bins) if span else Decimal(1)
    power = Decimal(1).scaleb(least.adjusted())
    return next(step for n in _ROUND if (step := WIDE.multiply(n, power)) >= least)


def as_double(bound: Decimal) -> float:
    """Return the smallest double whose shortest spelling is not below the bound."""
    double = float(bound)
    if math.isfinite(double) and exact(double) < bound:
        return math.nextafter(double, math.inf)
    return double
