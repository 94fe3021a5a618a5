"""Retries with growing pauses while a server is unavailable, and at once when it is available
again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

import structlog

from inference_store.platform.metrics import CAPTURE_TROUBLE

Server: TypeAlias = Literal["object store", "kafka"]
SERVERS: Sequence[Server] = ("object store", "kafka")
_LONGEST_SECONDS = 10.0
_log = structlog.get_logger()
T = TypeVar("T")


class Backoff:
    """The retries against one server: as soon as one call succeeds, all that wait try again."""

    def __init__(
        self, server: Server, expected: tuple[type[BaseException], ...], *, first_seconds: float
    ) -> None:
        self._server: Server = server
        self._expected = expected
        self._first = first_seconds
        self._back = asyncio.Event()
        self.unavailable: str | None = None
        """Why work waits for the server; None if none does."""

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the work's result, however long it takes. Raises only unexpected errors."""
        wait = self._first
        while True:
            try:
                result = await work()
            except self._expected as error:
                self.note_failure(f"{type(error).__name__}: {error}", wait)
            else:
                self.note_success()
                return result
            await self._pause(wait)
            wait = min(wait * 2, _LONGEST_SECONDS)

    def note_failure(self, why: str, seconds: float) -> None:
        """Note that the server does not answer."""
        CAPTURE_TROUBLE.labels(self._server).inc()
        if self.unavailable is None:
            _log.warning(
                "a server is unavailable",
                action="waiting",
                server=self._server,
                error=why[:500],
                seconds=seconds,
            )
        self.unavailable = why[:500]

    def note_success(self) -> None:
        """Note that the server answers."""
        if self.unavailable is not None:
            _log.info("a server is available again", action="going_on", server=self._server)
            self.unavailable = None
            self._back.set()
            self._back.clear()

    async def find_reason(self) -> str | None:
        """Return why captures wait, for the admin port; None if they do not."""
        return self.unavailable

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._back.wait(), seconds)
        except TimeoutError:
            return
