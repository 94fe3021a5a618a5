"""Waiting for a server that is away: longer each time, and at once when it is back."""

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


class Patience:
    """One server's: everyone who waits for it goes on when one has got through."""

    def __init__(
        self, server: Server, expected: tuple[type[BaseException], ...], *, first_seconds: float
    ) -> None:
        self._server: Server = server
        self._expected = expected
        self._first = first_seconds
        self._back = asyncio.Event()
        self.away: str | None = None
        """Why the server keeps us waiting; None: it does not."""

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """The work's result, however long it takes; raises what is no absence of the server."""
        wait = self._first
        while True:
            try:
                done = await work()
            except self._expected as error:
                self.miss(f"{type(error).__name__}: {error}", wait)
            else:
                self.return_()
                return done
            await self._pause(wait)
            wait = min(wait * 2, _LONGEST_SECONDS)

    def miss(self, why: str, seconds: float) -> None:
        """The server does not answer."""
        CAPTURE_TROUBLE.labels(self._server).inc()
        if self.away is None:
            _log.warning(
                "a server is away",
                action="waiting",
                server=self._server,
                error=why[:500],
                seconds=seconds,
            )
        self.away = why[:500]

    def return_(self) -> None:
        """The server answers."""
        if self.away is not None:
            _log.info("a server is back", action="going_on", server=self._server)
            self.away = None
            self._back.set()
            self._back.clear()

    async def reason(self) -> str | None:
        """For the admin port: why captures wait; None where they do not."""
        return self.away

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._back.wait(), seconds)
        except TimeoutError:
            return
