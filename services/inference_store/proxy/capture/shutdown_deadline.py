"""The time that is left to finish work after a signal to stop."""

import asyncio
from collections.abc import Awaitable
from typing import Final

_LAST_REPORT_SECONDS: Final = 3.0
_REPORT_SHARE: Final = 1 / 3


def final_report_seconds(seconds: float) -> float:
    """Return how many of these seconds are reserved for the final report."""
    return min(_LAST_REPORT_SECONDS, seconds * _REPORT_SHARE)


class ShutdownDeadline:
    """A number of seconds from now on. For the event loop's thread."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._end - self._loop.time())

    async def run(self, work: Awaitable[object]) -> None:
        """Await the work; cancel it at the deadline. Raises what the work raises."""
        doing = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({doing}, timeout=self.seconds_left)
        if done:
            await doing
        doing.cancel()
