"""Retries: each piece of work clears only what it waited for itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.platform.backoff import Backoff, Stopped


def make_backoff(seconds: float, stop: asyncio.Event | None = None) -> Backoff:
    return Backoff(
        lambda error: "object store" if isinstance(error, ObjectStoreUnavailable) else None,
        lambda _: None,
        stop=stop,
        first_seconds=seconds,
    )


def make_failing_work(times: int) -> Callable[[], Awaitable[str]]:
    """Return work that fails `times` times because the object store is unavailable."""
    failures = iter(range(times))

    async def work() -> str:
        if next(failures, None) is not None:
            raise ObjectStoreUnavailable("gone")
        return "done"

    return work


async def test_retries_until_the_server_is_back_or_it_is_stopped() -> None:
    backoff = make_backoff(0)
    assert await backoff.retry(make_failing_work(3)) == "done"
    assert backoff.unavailable == {}
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Stopped):
        await make_backoff(300, stop).retry(make_failing_work(1))
    for unavailable in (make_failing_work(0), make_failing_work(1)):
        backoff = make_backoff(0)

        async def work(before: Callable[[], Awaitable[str]] = unavailable) -> None:
            await before()
            raise KeyError

        with pytest.raises(KeyError):
            await backoff.retry(work)
        assert backoff.unavailable == {}


async def test_success_does_not_hide_other_waiting_work() -> None:
    backoff = make_backoff(300)
    waiting = asyncio.create_task(backoff.retry(make_failing_work(1)))
    await asyncio.sleep(0)
    assert "gone" in str(await backoff.find_reason("object store"))
    await backoff.retry(make_failing_work(0))
    assert list(backoff.unavailable) == ["object store"]
    waiting.cancel()


async def test_finished_work_does_not_hide_work_that_waits_for_the_same_server() -> None:
    backoff = make_backoff(0)
    endless = asyncio.create_task(backoff.retry(make_failing_work(1_000_000)))
    await backoff.retry(make_failing_work(3))
    assert list(backoff.unavailable) == ["object store"]
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert backoff.unavailable == {}


async def test_work_that_goes_on_says_that_it_has_what_it_waited_for() -> None:
    backoff = make_backoff(0)
    failing = make_failing_work(1)

    async def work() -> dict[str, str]:
        await failing()
        backoff.clear()
        return backoff.unavailable

    assert await backoff.retry(work) == {}
    with backoff.waiting() as reasons:
        backoff.note(reasons, "object store", "slow", 1)
        assert backoff.unavailable == {"object store": "slow"}
    assert backoff.unavailable == {}
