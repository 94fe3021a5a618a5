from datetime import UTC, datetime, timedelta

import pytest

from inference_store.erasure.policies.durations import parse_duration

MARCH_31 = datetime(2024, 3, 31, 12, tzinfo=UTC)


def test_a_duration_goes_back_in_time() -> None:
    for text, before in (
        ("PT0S", MARCH_31),
        ("P1D", MARCH_31 - timedelta(days=1)),
        ("P2W", MARCH_31 - timedelta(days=14)),
        ("PT1H30M0.5S", MARCH_31 - timedelta(hours=1, minutes=30, milliseconds=500)),
        ("P1M", datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("P13M", datetime(2023, 2, 28, 12, tzinfo=UTC)),
        ("P1Y1DT12H", datetime(2023, 3, 30, 0, tzinfo=UTC)),
        ("P1000Y", datetime(2000, 1, 1, tzinfo=UTC)),
        ("P999999999W", datetime(2000, 1, 1, tzinfo=UTC)),
        ("P999999999Y", datetime(2000, 1, 1, tzinfo=UTC)),
    ):
        duration = parse_duration(text)
        assert duration is not None, text
        assert duration.before(MARCH_31) == before, text


def test_forever_is_no_duration() -> None:
    assert parse_duration("forever") is None


def test_rejects_other_texts(subtests: pytest.Subtests) -> None:
    cases = ("", "P", "PT", "P1DT", "P-1D", "-P1D", "1D", "P1.5D", "P1S", "P1H", "Forever", "P１D")
    for text in cases:
        with subtests.test(text), pytest.raises(ValueError, match="ISO 8601"):
            parse_duration(text)
