"""Where the spans of a calendar begin, also where clocks change."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from inference_store.store.aggregates.asked import Unit
from inference_store.store.aggregates.buckets import TooManyBuckets, starts


def instant(text: str) -> datetime:
    """UTC, as it is written."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "zone", "first", "last", "expected"),
    [
        (
            "hour",
            "UTC",
            "2026-11-01T00:59",
            "2026-11-01T02:00",
            ["11-01T00", "11-01T01", "11-01T02", "11-01T03"],
        ),
        # 02:00 to 03:00 comes twice in Berlin: at 00:00 and at 01:00 UTC
        (
            "hour",
            "Europe/Berlin",
            "2026-10-25T00:30",
            "2026-10-25T01:30",
            ["10-25T00", "10-25T01", "10-25T02"],
        ),
        # a day of 25 hours, one of 23, and one of 24 after it
        ("day", "Europe/Berlin", "2026-10-25T12:00", "2026-10-25T12:00", ["10-24T22", "10-25T23"]),
        (
            "day",
            "Europe/Berlin",
            "2026-03-29T12:00",
            "2026-03-30T12:00",
            ["03-28T23", "03-29T22", "03-30T22"],
        ),
        (
            "week",
            "Europe/Berlin",
            "2026-10-25T12:00",
            "2026-10-26T12:00",
            ["10-18T22", "10-25T23", "11-01T23"],
        ),
        (
            "month",
            "UTC",
            "2026-01-31T12:00",
            "2026-03-01T00:00",
            ["01-01T00", "02-01T00", "03-01T00", "04-01T00"],
        ),
        # midnight comes twice in Havana: the day begins with the first
        ("day", "America/Havana", "2026-11-01T05:30", "2026-11-01T05:30", ["11-01T04", "11-02T05"]),
    ],
)
def test_starts(unit: Unit, zone: str, first: str, last: str, expected: list[str]) -> None:
    found = starts(unit, ZoneInfo(zone), instant(first), instant(last), most=100)
    assert [f"{each:%m-%dT%H}" for each in found] == expected
    assert all((each.minute, each.second) == (0, 0) for each in found)


@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Asia/Kathmandu", "America/Sao_Paulo"])
@pytest.mark.parametrize("unit", ["minute", "hour", "day", "week", "month"])
def test_they_cover_all_of_it_in_order(unit: Unit, zone: str) -> None:
    first = instant("2018-02-17T00:10")
    days = 2 if unit == "minute" else 60
    found = starts(unit, ZoneInfo(zone), first, first + timedelta(days=days), most=10_000)
    assert found[0] <= first
    assert found[-2] <= first + timedelta(days=days) < found[-1]
    assert found == sorted(set(found))


def test_half_an_hour_of_summer_time() -> None:
    """Lord Howe goes back from 02:00 to 01:30: the hour from 01:00 on has 90 minutes."""
    zone = ZoneInfo("Australia/Lord_Howe")
    found = starts("hour", zone, instant("2026-04-04T14:00"), instant("2026-04-04T15:29"), most=9)
    assert [f"{each:%H:%M}" for each in found] == ["14:00", "15:30"]


def test_too_many() -> None:
    with pytest.raises(TooManyBuckets):
        starts(
            "minute",
            ZoneInfo("UTC"),
            instant("2000-01-01T00:00"),
            instant("2026-01-01T00:00"),
            most=10,
        )
    with pytest.raises(TooManyBuckets):
        starts(
            "hour",
            ZoneInfo("UTC"),
            instant("2026-01-01T00:00"),
            instant("2026-01-01T12:00"),
            most=5,
        )
