"""Backoff: each piece of work clears only what it waited for itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.ingester.backoff import Backoff, Stopped
from tests.polling import until


def make_failing_work(times: int) -> Callable[[], Awaitable[str]]:
    """Return work that fails `times` times because the object store is unavailable."""
    remaining = [times]

    async def work() -> str:
        if remaining[0] > 0:
            remaining[0] -= 1
            raise ObjectStoreUnavailable("gone")
        return "done"

    return work


async def test_retries_until_the_server_is_back() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0.001)
    assert await backoff.retry(make_failing_work(3)) == "done"
    assert backoff.unavailable == {}


async def test_success_does_not_hide_other_waiting_work() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=60)
    waiting = asyncio.create_task(backoff.retry(make_failing_work(1)))
    await until(lambda: backoff.find_reason("object store"), lambda reason: reason is not None)
    await backoff.retry(make_failing_work(0))
    assert list(backoff.unavailable) == ["object store"]
    waiting.cancel()


async def test_finished_work_does_not_hide_work_that_waits_for_the_same_server() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0.001)
    endless = asyncio.create_task(backoff.retry(make_failing_work(1_000_000)))
    await backoff.retry(make_failing_work(3))
    assert list(backoff.unavailable) == ["object store"]
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert backoff.unavailable == {}


async def test_unexpected_error_ends_the_wait() -> None:
    backoff = Backoff(asyncio.Event(), first_seconds=0.001)
    unavailable = make_failing_work(1)

    async def work() -> None:
        await unavailable()
        raise KeyError

    with pytest.raises(KeyError):
        await backoff.retry(work)
    assert backoff.unavailable == {}


async def test_raises_when_asked_to_stop() -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Stopped):
        await Backoff(stop, first_seconds=60).retry(make_failing_work(1))


async def test_raises_unexpected_errors() -> None:
    async def broken() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await Backoff(asyncio.Event(), first_seconds=0.001).retry(broken)
