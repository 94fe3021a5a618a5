"""Waiting for a server that is away: longer each time, said in health and metrics, lossless."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from aiokafka.errors import KafkaError

from inference_store.index.database import is_trouble
from inference_store.inference.errors import BlobsAway, LedgerApart
from inference_store.platform.admin import Heartbeat
from inference_store.platform.metrics import TROUBLE

_LONGEST_SECONDS = 30.0
_log = structlog.get_logger()
T = TypeVar("T")


# What an ingester may have to wait for.
SERVERS = ("kafka", "postgres", "object store", "ledger")


def server_of(error: BaseException) -> str | None:
    """Which server is away; None where the error is of another kind."""
    if isinstance(error, BlobsAway):
        return "object store"
    if isinstance(error, LedgerApart):
        return "ledger"
    if isinstance(error, KafkaError):
        return "kafka"
    return "postgres" if is_trouble(error) else None


class Stopped(Exception):
    """The service was asked to stop while it waited."""


class Patience:
    """Runs work until it succeeds, as long as only a server's absence stands against it."""

    def __init__(
        self, stop: asyncio.Event, *, first_seconds: float, heartbeat: Heartbeat | None = None
    ) -> None:
        self._stop = stop
        self._first = first_seconds
        self._heartbeat = heartbeat or Heartbeat()
        # Of each piece of work that waits: the servers that kept it from being done, and why.
        self._waiting: list[dict[str, str]] = []
        self._gate: Callable[[], Awaitable[None]] | None = None

    @property
    def away(self) -> dict[str, str]:
        """Which servers keep us waiting, and why."""
        return {server: why for noted in self._waiting for server, why in noted.items()}

    def only_while(self, gate: Callable[[], Awaitable[None]]) -> None:
        """From now on nothing is begun while the gate raises that something is away."""
        self._gate = gate

    async def reason(self, server: str) -> str | None:
        """Why a server keeps us waiting; None while it does not."""
        return self.away.get(server)

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """The work's result. Raises Stopped, or any error that is not a server's absence."""
        noted: dict[str, str] = {}
        self._waiting.append(noted)
        try:
            return await self._try(work, noted)
        finally:
            # Only our own, however it ended: another may wait for the same server still.
            self._waiting = [each for each in self._waiting if each is not noted]

    async def _try(self, work: Callable[[], Awaitable[T]], noted: dict[str, str]) -> T:
        wait = self._first
        while True:
            # One who waits for a server is alive: restarting it would not bring the server back.
            self._heartbeat.beat()
            try:
                if self._gate is not None:
                    await self._gate()
                return await work()
            except Exception as error:  # sorted out by its kind: anything else goes up
                server = server_of(error)
                if server is None:
                    raise
                noted[server] = f"{type(error).__name__}: {error}"[:500]
                self._tell(server, error, wait)
            await self._pause(wait)
            wait = min(wait * 2, _LONGEST_SECONDS)

    def _tell(self, server: str, error: Exception, wait: float) -> None:
        TROUBLE.labels(server).inc()
        _log.warning(
            "a server is away", action="waiting", server=server, error=str(error), seconds=wait
        )

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped
