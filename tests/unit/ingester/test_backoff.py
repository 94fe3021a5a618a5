"""Backoff: each piece of work clears only what it waited for itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.ingester.limit import Backoff, Stopped


def make_failing_work(times: int) -> Callable[[], Awaitable[str]]:
    """Return work that fails `times` times because the object store is unavailable."""
    failures = iter(range(times))

    async def work() -> str:
        if next(failures, None) is not None:
            raise ObjectStoreUnavailable("gone")
        return "done"

    return work


async def test_retries_until_the_server_is_back() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0)
    assert await backoff.retry(make_failing_work(3)) == "done"
    assert backoff.unavailable == {}


async def test_success_does_not_hide_other_waiting_work() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=300)
    waiting = asyncio.create_task(backoff.retry(make_failing_work(1)))
    await asyncio.sleep(0)
    assert "gone" in str(await backoff.find_reason("object store"))
    await backoff.retry(make_failing_work(0))
    assert list(backoff.unavailable) == ["object store"]
    waiting.cancel()


async def test_finished_work_does_not_hide_work_that_waits_for_the_same_server() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0)
    endless = asyncio.create_task(backoff.retry(make_failing_work(1_000_000)))
    await backoff.retry(make_failing_work(3))
    assert list(backoff.unavailable) == ["object store"]
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert backoff.unavailable == {}


async def test_unexpected_error_ends_the_wait() -> None:
    for unavailable in (make_failing_work(0), make_failing_work(1)):
        backoff = Backoff(asyncio.Event(), first_seconds=0)

        async def work(before: Callable[[], Awaitable[str]] = unavailable) -> None:
            await before()
            raise KeyError

        with pytest.raises(KeyError):
            await backoff.retry(work)
        assert backoff.unavailable == {}


async def test_raises_when_asked_to_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Stopped):
        await Backoff(stop, first_seconds=300).retry(make_failing_work(1))
