"""What is cached is two seconds old at most, counted from before it was read."""

import asyncio

import pytest

from inference_store.api import authentication
from inference_store.api.authentication import FRESH_SECONDS, FreshCache
from tests.stopped_clock import StoppedClock


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
