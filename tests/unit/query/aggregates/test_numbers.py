"""Bounds of bins, percentiles near and exact, and how numbers are written."""

from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.query.aggregates.bins import as_double, automatic
from inference_store.query.aggregates.exact import deviation, exact, plain, variance
from inference_store.query.aggregates.sketch import percentile, value_of

_DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
_DOUBLES = st.floats(allow_nan=False, allow_infinity=False)


def test_automatic_bounds() -> None:
    cases: list[tuple[str, str, int, list[str]]] = [
        ("0", "1", 5, ["0", "0.2", "0.4", "0.6", "0.8", "1.0", "1.2"]),
        ("0.03", "0.97", 10, ["0.0", *(f"0.{n}" for n in range(1, 10)), "1.0"]),
        ("7", "7", 10, ["7", "8"]),
        ("-5", "1e2", 3, ["-50", "0", "50", "100", "150"]),
    ]
    for low, high, bins, expected in cases:
        assert automatic(Decimal(low), Decimal(high), bins) == tuple(map(Decimal, expected)), low


@given(first=_DECIMALS, second=_DECIMALS, bins=st.integers(1, 50))
def test_automatic_bounds_hold_all(first: Decimal, second: Decimal, bins: int) -> None:
    low, high = sorted([first.normalize(), second.normalize()])
    if high.adjusted() > 400 or low.adjusted() > 400 or (low and low.adjusted() < -400):
        return
    bounds = automatic(low, high, bins)
    assert bounds[0] <= low
    assert high < bounds[-1]
    assert len(bounds) - 1 <= bins + 2
    assert all(a < b for a, b in pairwise(bounds))


@example(bound=Decimal("0.1000000000000000000001"), value=0.1)
@given(
    bound=_DOUBLES.map(lambda value: Decimal(repr(value))) | st.decimals(-10, 10), value=_DOUBLES
)
def test_a_bound_of_doubles_cuts_where_their_spelling_does(bound: Decimal, value: float) -> None:
    assert (value >= as_double(bound)) == (Decimal(repr(value)) >= bound)


def test_percentile() -> None:
    for at, expected in [(0, 1), (25, 1), (26, 2), (50, 2), (75, 2), (76, 9), (100, 9)]:
        assert percentile(Counter({1: 1, 2: 2, 9: 1}), Decimal(at)) == expected, at


@given(st.integers(-5000, 5000))
def test_a_bin_represents_nearby_values(k: int) -> None:
    upper = Decimal("1.0099") ** k
    middle = value_of(1_000_000 + k)
    for edge in (upper, upper / Decimal("1.0099")):
        assert abs(middle - edge) <= edge * Decimal("0.005")
    assert value_of(-1_000_000 - k) == -middle


def test_plain() -> None:
    for value, expected in [
        ("1.500", "1.5"),
        ("100", "100"),
        ("1E+3", "1000"),
        ("-0.0", "0"),
        ("1E+40", "1E+40"),
    ]:
        assert str(plain(Decimal(value))) == expected, value


def test_a_double_is_what_it_spells() -> None:
    assert exact(0.1) == Decimal("0.1")
    assert exact(-0.0) == 0


@given(st.lists(st.decimals(-(10**6), 10**6, places=6), min_size=2, max_size=20))
def test_variance_and_deviation(values: list[Decimal]) -> None:
    squares = sum((value * value for value in values), Decimal(0))
    number, total = len(values), sum(values, Decimal(0))
    mean = Fraction(total) / number
    distances = [Fraction(value) - mean for value in values]
    expected = sum((distance * distance for distance in distances), Fraction(0)) / (number - 1)
    result = variance(number, total, squares)
    assert abs(Fraction(result) - expected) <= expected * Fraction(1, 10**33)
    root = Fraction(deviation(number, total, squares))
    assert abs(root * root - expected) <= expected * Fraction(1, 10**32)
