"""The time at the end, shared out: the last things are done within it, too."""

import asyncio
from collections.abc import Awaitable
from typing import Final

_LAST_WORDS_SECONDS: Final = 3.0
_LAST_WORDS_SHARE: Final = 1 / 3


def last_words(seconds: float) -> float:
    """Seconds of a grace that are for the last words alone."""
    return min(_LAST_WORDS_SECONDS, seconds * _LAST_WORDS_SHARE)


class Grace:
    """So many seconds from now on. For the event loop's thread."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._end - self._loop.time())

    async def within(self, work: Awaitable[object]) -> None:
        """Do it as long as there is time, then give it up; what it raises is raised."""
        doing = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({doing}, timeout=self.left)
        if done:
            await doing
        doing.cancel()
