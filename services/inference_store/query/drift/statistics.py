"""How far apart two distributions are, and how likely chance is to put them as far apart.

Tail functions take a few lines, so that none of it needs scipy, by which the tests judge them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import exp, inf, lgamma, log, log2, pi, sqrt
from typing import Final, NamedTuple

_EPSILON: Final = 1e-15
_MOST_TERMS: Final = 10_000
_NORMAL: Final = 1.959963984540054
"""Standard errors on either side of 95 % of a normal distribution."""


def chi2_tail(statistic: float, degrees: int) -> float:
    """Return the chance that a chi-square of so many degrees of freedom is as large: the
    regularised upper incomplete gamma function."""
    a, x = degrees / 2, statistic / 2
    if x <= 0:
        return 1.0
    front = exp(a * log(x) - x - lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, _MOST_TERMS):
            term *= x / (a + n)
            total += term
            if term < total * _EPSILON:
                break
        return max(0.0, 1 - front * total)
    # Lentz's continued fraction
    b = x + 1 - a
    c, d = inf, 1 / b
    fraction = d
    for n in range(1, _MOST_TERMS):
        an = n * (a - n)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        fraction *= d * c
        if abs(d * c - 1) < _EPSILON:
            break
    return front * fraction


def chi2_critical(level: float, degrees: int) -> float:
    """Return the value that a chi-square of so many degrees of freedom exceeds by this chance."""
    low, high = 0.0, float(degrees + 1)
    while chi2_tail(high, degrees) > level:
        low, high = high, 2 * high
    while high - low > _EPSILON * high:
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if chi2_tail(middle, degrees) > level else (low, middle)
    return high


def kolmogorov_tail(value: float) -> float:
    """Return the chance that Kolmogorov's distribution is as large; by its series, of which one
    converges fast for small values, and the other for large ones."""
    if value < 0.1:
        return 1.0
    if value < 1.18:
        front, power = sqrt(2 * pi) / value, -(pi**2) / (8 * value**2)
        return 1 - front * sum(exp(power * (2 * n - 1) ** 2) for n in range(1, 6))
    terms = [exp(-2 * (n * value) ** 2) for n in range(1, 6)]
    return 2 * (sum(terms[::2]) - sum(terms[1::2]))


def ks_tail(distance: float, reference: float, current: float) -> float:
    """Return the chance of such a Kolmogorov-Smirnov distance between two samples of these sizes;
    it is less if values are equal. (Stephens's correction is for one sample: with two it alarms too
    often.)"""
    chance = kolmogorov_tail(sqrt(reference * current / (reference + current)) * distance)
    return min(1.0, max(0.0, chance))


class Spread(NamedTuple):
    """How far apart the values of two samples are."""

    ks: float
    """The largest difference of the shares that lie below a value."""
    wasserstein: float
    """The mean way, in the values' own unit, from one distribution to the other."""


def compare_values(reference: Mapping[float, int], current: Mapping[float, int]) -> Spread:
    """Compare two samples of numbers, given as how often each value occurs; none is empty."""
    n, m = sum(reference.values()), sum(current.values())
    ks = wasserstein = below = 0.0
    values = sorted({*reference, *current})
    for value, following in pairwise([*values, values[-1]]):
        below += reference.get(value, 0) / n - current.get(value, 0) / m
        ks = max(ks, abs(below))
        wasserstein += abs(below) * (following - value)
    return Spread(min(ks, 1.0), wasserstein)


Pair = tuple[int, int]
"""How many of the reference and of the current window a bin has."""


def _shares(bins: Sequence[Pair], *, added: float = 0) -> list[tuple[float, float]]:
    n, m = (sum(pair[side] for pair in bins) + added * len(bins) for side in (0, 1))
    return [((p + added) / n, (q + added) / m) for p, q in bins]


def total_variation(bins: Sequence[Pair]) -> float:
    """Return the share of one sample that would have to lie in other bins to be as the other."""
    return sum(abs(p - q) for p, q in _shares(bins)) / 2


def jensen_shannon(bins: Sequence[Pair]) -> float:
    """Return the Jensen-Shannon distance: 0 if the shares are equal, 1 if no bin has both."""

    def diverge(part: float, middle: float) -> float:
        return part * log2(part / middle) if part else 0.0

    shares = [(p, q, (p + q) / 2) for p, q in _shares(bins)]
    return sqrt(max(0.0, sum(diverge(p, of) + diverge(q, of) for p, q, of in shares) / 2))


def psi(bins: Sequence[Pair]) -> float:
    """Return the population stability index. Half an observation is added to each bin: a bin that
    one sample lacks would make it infinite."""
    return sum((p - q) * log(p / q) for p, q in _shares(bins, added=0.5))


def psi_critical(level: float, degrees: int, reference: float, current: float) -> float:
    """Return what PSI exceeds by this chance if nothing has changed: with few observations it is
    large by itself."""
    return chi2_critical(level, degrees) * (1 / reference + 1 / current)


def chi_square_tail(bins: Sequence[Pair]) -> float:
    """Return the chance that two samples of one distribution differ as much, by Pearson's test;
    with Yates's correction of two bins. No bin is empty."""
    n, m = (sum(pair[side] for pair in bins) for side in (0, 1))
    statistic = 0.0
    for pair in bins:
        for count, total in zip(pair, (n, m), strict=True):
            expected = sum(pair) * total / (n + m)
            gap = abs(count - expected)
            gap -= min(0.5, gap) if len(bins) == 2 else 0
            statistic += gap**2 / expected
    return chi2_tail(statistic, len(bins) - 1)


def share_interval(reference: Pair, current: Pair) -> tuple[float, float]:
    """Return the 95 % interval of a difference of shares (hits, of all), by Newcombe's method."""
    (p, low_p, high_p), (q, low_q, high_q) = map(_wilson, (reference, current))
    below = sqrt((q - low_q) ** 2 + (high_p - p) ** 2)
    above = sqrt((high_q - q) ** 2 + (p - low_p) ** 2)
    return q - p - below, q - p + above


def _wilson(share: Pair) -> tuple[float, float, float]:
    hits, n = share
    p, z2 = hits / n, _NORMAL**2
    middle, half = p + z2 / (2 * n), _NORMAL * sqrt(p * (1 - p) / n + z2 / (4 * n**2))
    return p, max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))


def adjust(chances: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons, corrected by Holm's method: the chance that any
    of them raises a false alarm is that of one."""
    adjusted, most = [1.0] * len(chances), 0.0
    order: Callable[[int], float] = chances.__getitem__
    for place, number in enumerate(sorted(range(len(chances)), key=order)):
        most = max(most, min(1.0, chances[number] * (len(chances) - place)))
        adjusted[number] = most
    return adjusted
