"""Ends what waits for a Postgres that has stopped answering, as a frozen process does.

Its kernel goes on acknowledging, so that no time-out of TCP ends a wait; and a statement that runs
for long may do so. What tells them apart is a statement that takes no time.
"""

import asyncio
from typing import Any, Final
from weakref import WeakSet

import asyncpg
import structlog
from asyncpg.exceptions import InterfaceError, PostgresError

_PAUSE_SECONDS: Final = 1.0
# While this process stands still nothing is heard either: that counts as one of these waits.
_WAITS: Final = 12
_WAIT_SECONDS: Final = 0.25
_SILENT: Final = "it keeps connections and does not answer"
_log = structlog.get_logger()


class ServerWatch:
    """Asks a server every second, over a connection of its own, from an engine's first connection
    until the engine is disposed of.

    While nothing is answered for three seconds, every connection is closed, so that what waits on
    it fails as it does when Postgres is away, and connecting fails at once.
    """

    def __init__(self) -> None:
        self._given: WeakSet[Any] = WeakSet()
        self._opening: set[asyncio.Task[Any]] = set()
        self._is_silent = False
        self._own: Any = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self, *address: Any, **how: Any) -> Any:
        """Connect for an engine, as `asyncpg.connect` does. Raises ConnectionError while there is
        no answer."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(address, how))
        if self._is_silent:
            raise ConnectionError(_SILENT)
        opening = asyncio.ensure_future(asyncpg.connect(*address, **how))
        self._opening.add(opening)
        try:
            driver = await opening
        except asyncio.CancelledError:
            opening.add_done_callback(_end_late)
            task = asyncio.current_task()
            if not self._is_silent or (task is not None and task.cancelling()):
                raise
            raise ConnectionError(_SILENT) from None
        finally:
            self._opening.discard(opening)
        self._given.add(driver)
        return driver

    def stop(self, *_: object) -> None:
        """Stop asking; the next connection begins it again."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._is_silent = None, False
        self._close_own()

    async def _watch(self, address: Any, how: dict[str, Any]) -> None:
        try:
            while True:
                # first, because an engine may be disposed of at once
                if not self._is_silent:
                    await asyncio.sleep(_PAUSE_SECONDS)
                self._note(is_silent=not await self._is_answered(address, how))
        finally:
            self._close_own()

    async def _is_answered(self, address: Any, how: dict[str, Any]) -> bool:
        asking = asyncio.ensure_future(self._ask(address, how))
        try:
            for _ in range(_WAITS):
                await asyncio.wait([asking], timeout=_WAIT_SECONDS)
                if asking.done():
                    return True
            return False
        finally:
            if not asking.done():
                self._close_own()
                asking.cancel()

    async def _ask(self, address: Any, how: dict[str, Any]) -> None:
        """Return once anything is answered: also that it is shutting down, or not there at all."""
        try:
            if self._own is None or self._own.is_closed():
                opening = asyncio.ensure_future(asyncpg.connect(*address, **how))
                try:
                    self._own = await asyncio.shield(opening)
                except asyncio.CancelledError:
                    opening.add_done_callback(_end_late)
                    raise
            await self._own.execute("SELECT 1")
        except (PostgresError, InterfaceError, OSError):
            self._close_own()

    def _note(self, *, is_silent: bool) -> None:
        if is_silent and not self._is_silent:
            _log.warning("Postgres does not answer", action="postgres_silent")
        elif self._is_silent and not is_silent:
            _log.info("Postgres answers again", action="postgres_answers")
        self._is_silent = is_silent
        if is_silent:
            for opening in self._opening:
                opening.cancel()
            for driver in list(self._given):
                driver.terminate()

    def _close_own(self) -> None:
        if self._own is not None:
            self._own.terminate()
        self._own = None


def _end_late(opening: "asyncio.Future[Any]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()
