"""Percentiles: exact from each value and its count, or approximate from logarithmic bins.

The bins are those of DDSketch: bin k has the values in (g^(k-1), g^k], and 2·g^k/(1+g) is less
than half a per cent away from each of them. The bins of parts add up to the bins of the whole.
"""

import math
from collections.abc import Mapping
from decimal import Context, Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Integer, Numeric, case, cast, func, literal

METHOD: Final = "DDSketch: each value is at most 0.5 % away from the exact one"
_G: Final = Decimal("1.0099")
_LN_G: Final = math.log(1.0099)
# Numbers have exponents up to 400 and up to 1,000 digits: no bin has a number near this.
_ZERO: Final = 1_000_000
# As numerics: a numeric that is compared with a double is cast to one, and may be beyond them.
_LEAST_TAME, _MOST_TAME = (
    literal(Decimal("1e-300"), Numeric()),
    literal(Decimal("1e300"), Numeric()),
)
_DIGITS: Final = Context(prec=6)
_WIDE: Final = Context(prec=20)


def percentile(counts: Mapping[Any, int], at: Decimal) -> Any:
    """Return the smallest value that `at` per cent of the values do not exceed.

    `counts` must not be empty.
    """
    rank = max(1, math.ceil(sum(counts.values()) * at / 100))
    total = 0
    for value in sorted(counts):
        total += counts[value]
        if total >= rank:
            break
    return value


def bin_of(number: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the number of a value's bin, in SQL; larger values have larger numbers."""
    size = func.abs(number)
    tame = size.between(_LEAST_TAME, _MOST_TAME)
    # a numeric beyond the doubles has no logarithm as a double
    ln = case(
        (tame, func.ln(cast(size, Double()))),
        else_=cast(func.ln(cast(size, Numeric())), Double()),
    )
    k = literal(_ZERO) + cast(func.ceil(ln / literal(_LN_G, Double())), Integer())
    return case((number > 0, k), (number < 0, -k), else_=0)


def value_of(number: int) -> Decimal:
    """Return the value that represents a bin."""
    if number == 0:
        return Decimal(0)
    k = abs(number) - _ZERO
    middle = _DIGITS.divide(_WIDE.multiply(2, _WIDE.power(_G, k)), 1 + _G)
    return middle if number > 0 else -middle
