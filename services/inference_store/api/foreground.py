"""Ordinary requests, which streams give way to.

All of them compute in one interpreter: while a stream works, every step of another request waits
for its turn. An ordinary request is in the foreground until its answer begins; the pages of a
stream are not.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# A caller that asks one page after the other is idle between an answer and its next request.
_RECENT_SECONDS: Final = 1.0


class Foreground:
    """The requests in the foreground."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._count = 0
        self._idle_since: float | None = None
        self._idle: Final = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count one more request."""
        self._count += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count one less."""
        self._count -= 1
        if not self._count:
            self._idle_since = self._clock()
            self._idle.set()

    def read_clock(self) -> float:
        """Return the time, in seconds of a clock that only goes forward."""
        return self._clock()

    async def wait_until_idle(self, seconds: float, *, since: float) -> bool:
        """Return when no request is in the foreground, or after so many seconds; and whether there
        was one now, or after `since` and within the last second."""
        if self._idle.is_set():
            return self._was_busy(since)
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:  # a stream goes on all the same
            pass
        return True

    def _was_busy(self, since: float) -> bool:
        last = self._idle_since
        return last is not None and last > since and self._clock() - last < _RECENT_SECONDS


class TrackForeground:
    """ASGI: has each request in the foreground until its answer begins."""

    def __init__(self, app: ASGIApp, foreground: Foreground) -> None:
        self._app, self._foreground = app, foreground

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._foreground.leave()

        async def sending(message: Message) -> None:
            await send(message)
            leave()

        self._foreground.enter()
        try:
            await self._app(scope, receive, sending)
        finally:
            leave()
