"""The beginnings of calendar spans, also where clocks change."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from inference_store.query.aggregates.buckets import PATTERN, TooManyBuckets, starts, width_of

_ALL = [
    *("minute", "hour", "day", "week", "month", "PT40S", "PT1M", "PT15M", "PT45M", "PT6H", "PT7H"),
    *("PT36H", "P1D", "P10D", "P2W", "P3M", "P1Y"),
]


def parse_instant(text: str) -> datetime:
    """Parse an instant of UTC."""
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
