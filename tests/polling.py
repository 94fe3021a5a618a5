"""Poll until a deadline in a coroutine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.servers.waiting import WaitExpired

T = TypeVar("T")


async def until(
    ask: Callable[[], Awaitable[T]], enough: Callable[[T], bool], *, seconds: float = 600
) -> T:
    """Return the first answer that is enough. Raises WaitExpired with the last one."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        answer = await ask()
        if enough(answer):
            return answer
        if asyncio.get_running_loop().time() > deadline:
            raise WaitExpired(f"not within {seconds:g} s; the last answer was {answer!r}")
        await asyncio.sleep(0.05)
