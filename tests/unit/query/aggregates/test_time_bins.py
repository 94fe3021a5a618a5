"""Bounds of histograms of instants: few, rising, round, and around every value."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_store.query.aggregates.time_bins import automatic_times
from tests.properties import examples

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_INSTANTS = st.datetimes(timezones=st.just(UTC))


def _parse_instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_bounds_within_a_day() -> None:
    cases: list[tuple[str, str, int, list[str]]] = [
        ("2026-11-01 10:07", "2026-11-01 10:58", 6, ["10:00", "10:10", "10:20", "10:30", "10:40",
                                                     "10:50", "11:00"]),
        ("2026-11-01 10:07", "2026-11-01 10:07", 20, ["10:07:00", "10:07:01"]),
    ]  # fmt: skip
    for low, high, bins, bounds in cases:
        expected = tuple(_parse_instant(f"2026-11-01 {time}") for time in bounds)
        assert automatic_times(_parse_instant(low), _parse_instant(high), bins) == expected, low


def test_bounds_go_by_the_calendar() -> None:
    bounds = automatic_times(_parse_instant("2026-01-15"), _parse_instant("2026-11-20"), 12)
    assert bounds == tuple(datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 13))
    # Weeks begin on a Monday.
    weeks = automatic_times(_parse_instant("2026-11-01"), _parse_instant("2026-11-25"), 4)
    assert [week.date().isoformat() for week in weeks] == [
        *("2026-10-26", "2026-11-02", "2026-11-09", "2026-11-16", "2026-11-23", "2026-11-30")
    ]
    years = automatic_times(_parse_instant("2001-05-01"), _parse_instant("2026-05-01"), 5)
    assert [year.year for year in years] == [2000, 2010, 2020, 2030]
    parts = automatic_times(
        _parse_instant("2026-11-01 00:00:00.01"), _parse_instant("2026-11-01 00:00:00.05"), 4
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


@settings(deadline=None, max_examples=examples(100))
@given(low=_INSTANTS, micros=st.integers(0, 10_000_000), bins=st.integers(1, 50))
def test_narrow_spans_too(low: datetime, micros: int, bins: int) -> None:
    high = min(low, _LAST - timedelta(seconds=11)) + timedelta(microseconds=micros)
    low = min(low, high)
    bounds = automatic_times(low, high, bins)
    assert bounds[0] <= low <= high < bounds[-1]
    assert len(bounds) - 1 <= bins + 2
