"""How long a read waits before it is sent again."""

from datetime import UTC, datetime

import pytest

from inference_store_client import ConnectionFailed
from inference_store_client.commands import Failure
from inference_store_client.retries import Retries, read_retry_after

_NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("7", 7),
        (" 120 ", 120),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("Thu, 26 Nov 2026 12:00:30 GMT", 30),
        ("Thu, 26 Nov 2026 11:00:00 GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float) -> None:
    assert read_retry_after(text, now=_NOW) == seconds


def test_waits_grow_to_a_bound_and_are_shortened_at_random() -> None:
    retries = Retries(attempts=9, first_wait_seconds=1, longest_wait_seconds=20)
    failure = Failure(ConnectionFailed("cut"))
    for attempt, most in enumerate([1, 2, 4, 8, 16, 20, 20, 20], start=1):
        wait = retries.find_wait(failure, attempt)
        assert wait is not None
        assert most / 2 <= wait <= most
    assert retries.find_wait(failure, 9) is None


def test_what_the_store_asks_for_is_the_least() -> None:
    failure = Failure(ConnectionFailed("busy"), retry_after_seconds=50)
    assert Retries().find_wait(failure, 1) == 50
    assert Retries(longest_retry_after_seconds=49).find_wait(failure, 1) is None
