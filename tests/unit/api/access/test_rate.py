"""Buckets of requests."""

import pytest

from inference_store.api.access import find_network
from inference_store.api.authentication import RateLimiter
from inference_store.inference.errors import TooManyRequests, Unauthorized
from tests.stopped_clock import CallableClock


def test_a_minutes_worth_at_once_and_then_evenly() -> None:
    clock = CallableClock()
    buckets = RateLimiter(60, clock=clock)
    assert [buckets.take("a") for _ in range(60)] == [0] * 60
    assert buckets.take("a") == 1
    assert buckets.take("b") == 0
    clock.now += 1
    assert [buckets.take("a"), buckets.take("a")] == [0, 1]
    clock.now += 3600
    assert [buckets.take("a") for _ in range(61)] == [0] * 60 + [1]
    unlimited = RateLimiter(0)
    assert not any(unlimited.take("a") for _ in range(1000))


def test_the_oldest_of_many_is_forgotten() -> None:
    buckets = RateLimiter(1, most=10, clock=CallableClock())
    assert buckets.take("a") == 0
    assert buckets.take("a") > 0
    assert not any(buckets.take(str(number)) for number in range(10))
    assert buckets.take("9") > 0
    assert buckets.take("a") == 0


def test_only_tokens_that_fail_are_counted() -> None:
    failed = RateLimiter(2)
    for _ in range(5):
        with failed.limit_failures("192.0.2.7"):
            pass
        with pytest.raises(OSError, match="unavailable"), failed.limit_failures("192.0.2.7"):
            raise OSError("Postgres is unavailable")
    for _ in range(2):
        with pytest.raises(Unauthorized), failed.limit_failures("192.0.2.7"):
            raise Unauthorized("unknown")
    with pytest.raises(TooManyRequests), failed.limit_failures("192.0.2.7"):
        pass
    with failed.limit_failures("192.0.2.8"):
        pass


def test_tokens_that_are_checked_at_once_are_counted() -> None:
    failed = RateLimiter(1)
    with failed.limit_failures("a"), pytest.raises(TooManyRequests), failed.limit_failures("a"):
        pass


def test_strangers_of_a_network_count_as_one() -> None:
    for client, network in (
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a-socket", "a-socket"),
        (None, ""),
    ):
        assert find_network(client) == network, client
