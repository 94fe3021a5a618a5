"""ISO 8601 durations from an instant, forwards and backwards."""

from datetime import UTC, datetime, timedelta

import pytest

from inference_store.inference.iso_durations import read_duration

_MARCH_31 = datetime(2024, 3, 31, 12, tzinfo=UTC)


def test_months_go_by_the_calendar_and_days_are_exact() -> None:
    for text, before, after in (
        ("PT0S", _MARCH_31, _MARCH_31),
        ("P1D", datetime(2024, 3, 30, 12, tzinfo=UTC), datetime(2024, 4, 1, 12, tzinfo=UTC)),
        ("P1W", datetime(2024, 3, 24, 12, tzinfo=UTC), datetime(2024, 4, 7, 12, tzinfo=UTC)),
        ("P1M", datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(2024, 4, 30, 12, tzinfo=UTC)),
        ("P1Y", datetime(2023, 3, 31, 12, tzinfo=UTC), datetime(2025, 3, 31, 12, tzinfo=UTC)),
        ("P1MT36H", datetime(2024, 2, 28, tzinfo=UTC), datetime(2024, 5, 2, tzinfo=UTC)),
        (
            "PT0.000001S",
            _MARCH_31 - timedelta(microseconds=1),
            _MARCH_31 + timedelta(microseconds=1),
        ),
    ):
        duration = read_duration(text)
        assert duration is not None, text
        assert (duration.before(_MARCH_31), duration.after(_MARCH_31)) == (before, after), text


def test_times_beyond_the_calendar_overflow() -> None:
    for text in ("P8000Y", "P999999999Y", "P999999999W", "P100000M"):
        duration = read_duration(text)
        assert duration is not None, text
        for move in (duration.before, duration.after):
            with pytest.raises(OverflowError):
                move(_MARCH_31)


def test_rejects_malformed_durations() -> None:
    for text in ("", "P", "PT", "P1DT", "-P1D", "1D", "P1.5D", "P1S", "forever"):
        assert read_duration(text) is None
