"""When the cookie of a session counts."""

import asyncio

import pytest
from starlette.requests import Request

from inference_store.api import authentication
from inference_store.api.access import find_network
from inference_store.api.authentication import (
    COOKIE,
    FRESH_SECONDS,
    HEADER,
    FreshCache,
    RateLimiter,
    find_session_id,
)
from inference_store.inference.errors import TooManyRequests, Unauthorized
from tests.stopped_clock import CallableClock, StoppedClock

_OWN = {"Sec-Fetch-Site": "same-origin"}
_OURS = {HEADER: "1"}


def make_request(method: str, **headers: str) -> Request:
    """A request with the cookie."""
    sent = {"Host": "store.example:8443", "Cookie": f"other=1; {COOKIE}=abc"} | headers
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    return Request({"type": "http", "method": method, "headers": pairs})


def test_it_counts_for_its_own_page() -> None:
    for method, headers in (
        ("GET", _OWN),
        ("HEAD", _OWN),
        ("GET", {"Origin": "https://store.example:8443"}),
        ("GET", {"Origin": "https://STORE.example:8443"}),
        ("GET", _OWN | {"Origin": "https://behind.a.proxy.example"}),
        ("POST", _OWN | _OURS),
        ("DELETE", _OURS | {"Origin": "https://store.example:8443"}),
    ):
        assert find_session_id(make_request(method, **headers)) == "abc", method


def test_it_counts_for_no_other_page(subtests: pytest.Subtests) -> None:
    """Other headers do not matter: only a browser says where a page is from."""
    for method in ("GET", "POST"):
        for site in ("cross-site", "same-site", "none", "", "Same-Origin", "x"):
            with subtests.test(method=method):
                headers = {"Sec-Fetch-Site": site, "Origin": "https://store.example:8443"} | _OURS
                with pytest.raises(Unauthorized):
                    find_session_id(make_request(method, **headers))


def test_without_fetch_metadata_the_origin_must_be_its_own(subtests: pytest.Subtests) -> None:
    for origin in (
        None,
        "null",
        "",
        "https://evil.example",
        "https://store.example",
        "https://store.example:8443.evil.example",
        "https://evil.example/store.example:8443",
    ):
        with subtests.test(origin=origin):
            headers = _OURS if origin is None else _OURS | {"Origin": origin}
            with pytest.raises(Unauthorized):
                find_session_id(make_request("GET", **headers))


def test_a_change_needs_our_header(subtests: pytest.Subtests) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with subtests.test(method), pytest.raises(Unauthorized, match=HEADER):
            find_session_id(make_request(method, **_OWN))
    for value in ("", "0", "true"):
        with subtests.test(value), pytest.raises(Unauthorized, match="changes need the header"):
            find_session_id(make_request("POST", **_OWN, **{HEADER: value}))


def test_with_a_key_or_without_a_cookie_there_is_no_session() -> None:
    foreign = {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer x"}
    assert find_session_id(make_request("POST", **foreign)) is None
    assert find_session_id(make_request("GET", Cookie="other=1")) is None
    assert find_session_id(make_request("GET", Cookie=f"{COOKIE}=")) is None


# What is cached is two seconds old at most, counted from before it was read.


class Rows:
    """What Postgres has; a read takes what is there when it begins, and ends when it may."""

    def __init__(self) -> None:
        self.value, self.reads = "old", 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.cache = FreshCache(self.read)

    async def read(self, _: str) -> str | None:
        self.reads += 1
        value = self.value
        await self.may_end.wait()
        return value

    async def begin_read(self, **options: float) -> "asyncio.Task[str | None]":
        """Begin a read; before it ends, the value changes."""
        self.may_end.clear()
        reading = asyncio.create_task(self.cache.get("a", **options))
        await asyncio.sleep(0)
        self.value = "new"
        return reading


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    stopped = StoppedClock()
    monkeypatch.setattr(authentication, "time", stopped)
    return stopped


async def test_reads_again_after_two_seconds(clock: StoppedClock) -> None:
    rows = Rows()
    assert await rows.cache.get("a") == "old"
    rows.value = "new"
    clock.now += FRESH_SECONDS - 0.001
    assert (await rows.cache.get("a"), rows.reads) == ("old", 1)
    clock.now += 0.002
    assert (await rows.cache.get("a"), rows.reads) == ("new", 2)


@pytest.mark.usefixtures("clock")
async def test_a_read_that_began_before_a_change_is_not_used_again() -> None:
    for known in (True, False):
        rows = Rows()
        if known:
            await rows.cache.get("a")
        reading = await rows.begin_read(fresh_seconds=0)
        rows.cache.forget("a")
        rows.may_end.set()
        assert await reading == "old", known
        assert await rows.cache.get("a") == "new", known


# Buckets of requests.


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
