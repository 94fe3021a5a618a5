"""Waiting for servers: each waiter clears only what it waited for itself."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from inference_store.inference.errors import BlobsAway
from inference_store.ingester.patience import Patience, Stopped
from tests.polling import until


def failing(times: int) -> Callable[[], Awaitable[str]]:
    """Work that fails so many times because the object store is away."""
    left = [times]

    async def work() -> str:
        if left[0] > 0:
            left[0] -= 1
            raise BlobsAway("gone")
        return "done"

    return work


async def test_it_tries_until_the_server_is_back() -> None:
    patience = Patience(asyncio.Event(), first_seconds=0.001)
    assert await patience.until_done(failing(3)) == "done"
    assert patience.away == {}


async def test_the_success_of_one_does_not_hide_that_another_waits() -> None:
    patience = Patience(asyncio.Event(), first_seconds=60)
    waiting = asyncio.create_task(patience.until_done(failing(1)))
    await until(lambda: patience.reason("object store"), lambda said: said is not None)
    await patience.until_done(failing(0))
    assert list(patience.away) == ["object store"]
    waiting.cancel()


async def test_one_that_is_done_with_a_server_does_not_hide_another_that_waits_for_it() -> None:
    patience = Patience(asyncio.Event(), first_seconds=0.001)
    for_ever = asyncio.create_task(patience.until_done(failing(1_000_000)))
    await patience.until_done(failing(3))
    assert list(patience.away) == ["object store"]
    for_ever.cancel()
    with pytest.raises(asyncio.CancelledError):
        await for_ever
    assert patience.away == {}


async def test_work_that_ends_by_another_error_waits_no_longer() -> None:
    patience = Patience(asyncio.Event(), first_seconds=0.001)
    away = failing(1)

    async def work() -> None:
        await away()
        raise KeyError

    with pytest.raises(KeyError):
        await patience.until_done(work)
    assert patience.away == {}


async def test_it_stops_when_asked_to() -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(Stopped):
        await Patience(stop, first_seconds=60).until_done(failing(1))


async def test_an_error_of_another_kind_goes_up() -> None:
    async def broken() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await Patience(asyncio.Event(), first_seconds=0.001).until_done(broken)
