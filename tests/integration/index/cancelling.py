"""Work that is cancelled at many moments."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


async def cancel_later_and_later(
    start: Callable[[], Coroutine[Any, Any, T]],
) -> AsyncIterator["asyncio.Task[T]"]:
    """Yield the task, each time cancelled after more turns of the loop, until it ends by itself."""
    for step in count():
        task = asyncio.create_task(start())
        for _ in range(int(1.2**step)):
            await asyncio.sleep(0)
        is_over = task.done()
        task.cancel()
        await asyncio.wait([task])
        yield task
        if is_over:
            return
