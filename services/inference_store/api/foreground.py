"""Ordinary requests, which streams give way to.

All of them compute in one interpreter: while a stream works, every step of another request waits
for its turn. An ordinary request is in the foreground until its answer begins; the pages of a
stream are not.
"""

import asyncio
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Foreground:
    """The requests in the foreground."""

    def __init__(self) -> None:
        self._count = 0
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
            self._idle.set()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Return when no request is in the foreground, or after so many seconds; and whether there
        was one."""
        if self._idle.is_set():
            return False
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:  # a stream goes on all the same
            pass
        return True


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
