from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.events import parse_instant


def test_go_times_are_floored_to_microseconds() -> None:
    for text, expected in (
        ("2026-11-21T03:34:20Z", datetime(2026, 11, 21, 3, 34, 20, tzinfo=UTC)),
        ("2026-11-21T03:34:20.1Z", datetime(2026, 11, 21, 3, 34, 20, 100_000, tzinfo=UTC)),
        ("2026-11-21T03:34:20.123456789Z", datetime(2026, 11, 21, 3, 34, 20, 123_456, tzinfo=UTC)),
        ("2026-11-21T03:34:20.999999999Z", datetime(2026, 11, 21, 3, 34, 20, 999_999, tzinfo=UTC)),
        ("2026-11-21T03:34:20+05:30", datetime(2026, 11, 20, 22, 4, 20, tzinfo=UTC)),
        ("2026-11-21T03:34:20.5-00:01", datetime(2026, 11, 21, 3, 35, 20, 500_000, tzinfo=UTC)),
        ("2026-11-21t03:34:20z", datetime(2026, 11, 21, 3, 34, 20, tzinfo=UTC)),
    ):
        assert parse_instant(text) == expected


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z"])
def test_gos_zero_time_is_unset(text: str) -> None:
    assert parse_instant(text) is None


def test_a_leap_second_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="leap second"):
        parse_instant("2016-12-31T23:59:60Z")


def test_rejects_other_texts() -> None:
    for text in (
        "",
        "yesterday",
        "2026-11-21",
        "2026-11-21T03:34:20",
        "2026-13-21T03:34:20Z",
        "2026-11-21T25:34:20Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T03:34:20+25:00",
        "2026-11-21T03:34:20,123Z",
        "٢٠٢٦-11-21T03:34:20Z",
        "9999-12-31T23:59:59-23:59",
    ):
        with pytest.raises(ValueError, match=r"."):
            parse_instant(text)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9998, 1, 1)))  # noqa: DTZ001
def test_reads_back_what_python_writes(naive: datetime) -> None:
    at = naive.replace(tzinfo=UTC)
    assert parse_instant(at.isoformat().replace("+00:00", "Z")) == at


@given(st.text(max_size=40))
def test_no_text_does_worse_than_value_error(text: str) -> None:
    try:
        at = parse_instant(text)
    except ValueError:
        return
    assert at is None or at.utcoffset() == timedelta(0)
