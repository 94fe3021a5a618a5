"""Spans of the calendar, bins of numbers and of instants, percentiles, and exact results."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_store.query.aggregates.bins import (
    PATTERN,
    TooManyBuckets,
    as_double,
    automatic,
    automatic_times,
    deviation,
    exact,
    percentile,
    plain,
    starts,
    value_of,
    variance,
    width_of,
)
from tests.properties import examples

_ALL = [
    *("minute", "hour", "day", "week", "month", "PT40S", "PT1M", "PT15M", "PT45M", "PT6H", "PT7H"),
    *("PT36H", "P1D", "P10D", "P2W", "P3M", "P1Y"),
]


def parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def find_starts(unit: str, zone: str, first: str, last: str, most: int = 100) -> list[datetime]:
    span = (parse_instant(first), parse_instant(last))
    return starts(width_of(unit), ZoneInfo(zone), *span, most=most)


def test_starts() -> None:
    berlin = "Europe/Berlin"
    for unit, zone, first, last, expected in [
        ("hour", "UTC", "11-01T00:59", "11-01T02:00", "11-01T00 11-01T01 11-01T02 11-01T03"),
        # 02:00 to 03:00 comes twice in Berlin: at 00:00 and at 01:00 UTC
        ("hour", berlin, "10-25T00:30", "10-25T01:30", "10-25T00 10-25T01 10-25T02"),
        # a day of 25 hours, one of 23, and one of 24 after it
        ("day", berlin, "10-25T12:00", "10-25T12:00", "10-24T22 10-25T23"),
        ("day", berlin, "03-29T12:00", "03-30T12:00", "03-28T23 03-29T22 03-30T22"),
        ("week", berlin, "10-25T12:00", "10-26T12:00", "10-18T22 10-25T23 11-01T23"),
        ("month", "UTC", "01-31T12:00", "03-01T00:00", "01-01T00 02-01T00 03-01T00 04-01T00"),
        # midnight comes twice in Havana: the day begins with the first
        ("day", "America/Havana", "11-01T05:30", "11-01T05:30", "11-01T04 11-02T05"),
    ]:
        begins = find_starts(unit, zone, f"2026-{first}", f"2026-{last}")
        assert [f"{begin:%m-%dT%H}" for begin in begins] == expected.split(), (unit, zone, first)
        assert all((begin.minute, begin.second) == (0, 0) for begin in begins), (unit, zone)


def test_they_cover_all_of_it_in_order() -> None:
    for unit in _ALL:
        for zone in ["Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo"]:
            first = parse_instant("2018-02-17T00:10")
            days = 2 if unit in {"minute", "PT1M", "PT40S"} else 60
            begins = starts(
                width_of(unit), ZoneInfo(zone), first, first + timedelta(days=days), most=10_000
            )
            assert begins[0] <= first, (zone, unit)
            assert begins[-2] <= first + timedelta(days=days) < begins[-1], (zone, unit)
            assert begins == sorted(set(begins)), (zone, unit)


def test_half_an_hour_of_summer_time() -> None:
    """Lord Howe goes back from 02:00 to 01:30: the hour from 01:00 on has 90 minutes."""
    begins = find_starts("hour", "Australia/Lord_Howe", "2026-04-04T14:00", "2026-04-04T15:29")
    assert [f"{begin:%H:%M}" for begin in begins] == ["14:00", "15:30"]


def test_too_many() -> None:
    for unit, first, most in [("minute", "2000-01-01", 10), ("hour", "2025-12-31T12:00", 11)]:
        with pytest.raises(TooManyBuckets):
            find_starts(unit, "UTC", first, "2026-01-01T00:00", most)
    assert len(find_starts("hour", "UTC", "2025-12-31T13:00", "2026-01-01T00:00", 12)) == 13


def test_a_span_of_any_width() -> None:
    for span, zone, at, begin in [
        ("PT15M", "UTC", "2026-11-01T00:59", "2026-11-01T00:45"),
        # from midnight in Berlin, which is 23:00 UTC of the day before
        ("PT6H", "Europe/Berlin", "2026-11-01T12:00", "2026-11-01T11:00"),
        # a day of 25 hours has a fifth span, of one hour
        ("PT6H", "Europe/Berlin", "2026-10-25T22:30", "2026-10-25T22:00"),
        ("P1D", "Europe/Berlin", "2026-10-25T12:00", "2026-10-24T22:00"),
        ("P1W", "UTC", "2026-11-01T00:00", "2026-10-26T00:00"),
        ("P3M", "UTC", "2026-11-25T00:00", "2026-10-01T00:00"),
        ("P1Y", "Europe/Berlin", "2026-11-25T00:00", "2025-12-31T23:00"),
        # every seven hours from the third of January 2000 on
        ("PT7H", "UTC", "2000-01-03T14:30", "2000-01-03T14:00"),
        ("P10D", "UTC", "2000-01-12T23:59", "2000-01-03T00:00"),
    ]:
        begins = find_starts(span, zone, at, at, most=1)
        assert begins[0] == parse_instant(begin), span
        assert begins[1] > parse_instant(at), span


def test_the_pattern_has_every_span() -> None:
    for span in _ALL:
        assert re.search(PATTERN, span), span


def test_rejects_malformed_spans(subtests: pytest.Subtests) -> None:
    for span in ["year", "P", "PT0S", "P1Y6M", "PT1.5H", "P200Y", "PT15", "-P1D", ""]:
        with subtests.test(span), pytest.raises(ValueError, match=r"span|duration"):
            width_of(span)


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


_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_INSTANTS = st.datetimes(timezones=st.just(UTC))


def test_bounds_within_a_day() -> None:
    cases: list[tuple[str, str, int, list[str]]] = [
        ("2026-11-01 10:07", "2026-11-01 10:58", 6, ["10:00", "10:10", "10:20", "10:30", "10:40",
                                                     "10:50", "11:00"]),
        ("2026-11-01 10:07", "2026-11-01 10:07", 20, ["10:07:00", "10:07:01"]),
    ]  # fmt: skip
    for low, high, bins, bounds in cases:
        expected = tuple(parse_instant(f"2026-11-01 {time}") for time in bounds)
        assert automatic_times(parse_instant(low), parse_instant(high), bins) == expected, low


def test_bounds_go_by_the_calendar() -> None:
    bounds = automatic_times(parse_instant("2026-01-15"), parse_instant("2026-11-20"), 12)
    assert bounds == tuple(datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 13))
    # Weeks begin on a Monday.
    weeks = automatic_times(parse_instant("2026-11-01"), parse_instant("2026-11-25"), 4)
    assert [week.date().isoformat() for week in weeks] == [
        *("2026-10-26", "2026-11-02", "2026-11-09", "2026-11-16", "2026-11-23", "2026-11-30")
    ]
    years = automatic_times(parse_instant("2001-05-01"), parse_instant("2026-05-01"), 5)
    assert [year.year for year in years] == [2000, 2010, 2020, 2030]
    parts = automatic_times(
        parse_instant("2026-11-01 00:00:00.01"), parse_instant("2026-11-01 00:00:00.05"), 4
    )
    assert [part.microsecond for part in parts] == [10_000, 20_000, 30_000, 40_000, 50_000, 60_000]


@settings(deadline=None, max_examples=examples(200))
@example(_FIRST, _LAST, 20)
@example(_FIRST, _LAST, 1)
@example(_FIRST, _FIRST, 1)
@example(_LAST, _LAST, 1)
@given(first=_INSTANTS, second=_INSTANTS, bins=st.integers(1, 1000))
def test_every_value_lies_in_a_bin(first: datetime, second: datetime, bins: int) -> None:
    low, high = sorted((first, second))
    bounds = automatic_times(low, high, bins)
    assert bounds[0] <= low
    assert high < bounds[-1] or bounds[-1] == _LAST
    assert all(before < after for before, after in pairwise(bounds))
    assert len(bounds) - 1 <= bins + 2
