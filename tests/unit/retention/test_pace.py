"""Work that is given up when the service is asked to end."""

import asyncio
from typing import Any

import pytest

from inference_store.platform.admin import Heartbeat
from inference_store.retention.leadership_check import LeadershipCheck, Stopped


class Leader:
    """Whoever leads for ever."""

    async def confirm(self) -> None: ...


def make_pace(stop: asyncio.Event) -> LeadershipCheck:
    leader: Any = Leader()
    return LeadershipCheck(leader, Heartbeat(60), stop)


async def test_returns_work_that_ends_in_time() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await make_pace(asyncio.Event()).unless_stopped(work()) == 7


async def test_raises_errors_of_the_work() -> None:
    async def work() -> None:
        raise OSError("why")

    with pytest.raises(OSError, match="why"):
        await make_pace(asyncio.Event()).unless_stopped(work())


async def test_at_the_end_of_the_service_it_is_given_up() -> None:
    stop, begun, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    doing = asyncio.create_task(make_pace(stop).unless_stopped(work()))
    await begun.wait()
    stop.set()
    with pytest.raises(Stopped):
        await doing
    assert ended.is_set()
