"""ISO 8601 durations from an instant, forwards and backwards."""

from datetime import UTC, datetime, timedelta

import pytest

from inference_store.inference.iso_durations import read_duration

_MARCH_31 = datetime(2024, 3, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
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
    ],
)
def test_months_go_by_the_calendar_and_days_are_exact(
    text: str, before: datetime, after: datetime
) -> None:
    duration = read_duration(text)
    assert duration is not None
    assert (duration.before(_MARCH_31), duration.after(_MARCH_31)) == (before, after)


@pytest.mark.parametrize("text", ["P8000Y", "P999999999Y", "P999999999W", "P100000M"])
def test_times_beyond_the_calendar_overflow(text: str) -> None:
    duration = read_duration(text)
    assert duration is not None
    for move in (duration.before, duration.after):
        with pytest.raises(OverflowError):
            move(_MARCH_31)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "-P1D", "1D", "P1.5D", "P1S", "forever"])
def test_rejects_malformed_durations(text: str) -> None:
    assert read_duration(text) is None
