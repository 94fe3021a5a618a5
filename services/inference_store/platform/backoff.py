"""Retries with growing pauses while a server is unavailable; health and metrics show the wait."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import structlog

from .serving import Heartbeat

Reasons: TypeAlias = dict[str, str]
"""The server that one piece of work waits for, and why; empty while it does not wait."""
T = TypeVar("T")
_log = structlog.get_logger()


class Stopped(Exception):
    """The service was asked to stop; the next one resumes its work."""


class Backoff:
    """Runs work again and again while a server that it needs is unavailable.

    `find_server` names the server whose absence an error reports; None: the error is raised.
    `count` counts each failure.
    """

    def __init__(
        self,
        find_server: Callable[[BaseException], str | None],
        count: Callable[[str], None],
        *,
        stop: asyncio.Event | None = None,
        first_seconds: float = 0.5,
        longest_seconds: float = 30.0,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._find_server = find_server
        self._count = count
        self._stop = stop or asyncio.Event()
        self._first, self._longest = first_seconds, longest_seconds
        self._heartbeat = heartbeat or Heartbeat()
        self._waiting: list[Reasons] = []
        self._check: Callable[[], Awaitable[None]] | None = None

    @property
    def unavailable(self) -> Reasons:
        """The servers that work waits for, and why."""
        return {server: why for reasons in self._waiting for server, why in reasons.items()}

    async def find_reason(self, server: str) -> str | None:
        """Return why work waits for a server; None if none does."""
        return self.unavailable.get(server)

    def set_precondition(self, check: Callable[[], Awaitable[None]]) -> None:
        """Start no work from now on while `check` raises that a server is unavailable."""
        self._check = check

    def clear(self) -> None:
        """Note, within work that goes on for long, that it has what it waited for."""
        for reasons in self._waiting:
            reasons.clear()

    @contextmanager
    def waiting(self) -> Iterator[Reasons]:
        """Show what is noted in these reasons, until the end of the block."""
        reasons: Reasons = {}
        self._waiting.append(reasons)
        try:
            yield reasons
        finally:
            # Remove our own entry only: other work may still wait for the same server.
            self._waiting = [other for other in self._waiting if other is not reasons]

    def note(self, reasons: Reasons, server: str, why: str, seconds: float) -> None:
        """Note that a server does not answer; of several that wait for it, one logs it."""
        is_known = server in self.unavailable
        reasons.clear()  # another server that it waited for before may be back
        if not is_known:
            about = {"server": server, "error": why[:500], "seconds": seconds}
            _log.warning("a server is unavailable", action="waiting", **about)
        reasons[server] = why[:500]
        self._count(server)

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the work's result. Raises Stopped, or an error that is no server's absence."""
        wait = self._first
        with self.waiting() as reasons:
            while True:
                # A process that waits for a server is alive: a restart would not bring it back.
                self._heartbeat.beat()
                try:
                    if self._check is not None:
                        await self._check()
                    return await work()
                except Exception as error:  # sorted by its kind: anything else is raised
                    server = self._find_server(error)
                    if server is None:
                        raise
                    wait = min(wait * 2, self._longest) if reasons else self._first
                    self.note(reasons, server, f"{type(error).__name__}: {error}", wait)
                if await pause(self._stop, wait):
                    raise Stopped


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait, and return whether the service was asked to stop meanwhile."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
