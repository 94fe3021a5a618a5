"""Retries with growing pauses while a server is unavailable; health and metrics show the wait."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from aiokafka.errors import KafkaError

from inference_store.index.database import is_transient
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.platform.admin import Heartbeat
from inference_store.platform.metrics import TROUBLE

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_log = structlog.get_logger()
T = TypeVar("T")


# The servers that an ingester may wait for.
SERVERS = ("kafka", "postgres", "object store", "ledger")


def find_server(error: BaseException) -> str | None:
    """Return the server that is unavailable; None if the error is of another kind."""
    if isinstance(error, ObjectStoreUnavailable):
        return "object store"
    if isinstance(error, LedgerDiverged):
        return "ledger"
    if isinstance(error, KafkaError):
        return "kafka"
    return "postgres" if is_transient(error) else None


class Stopped(Exception):
    """The service was asked to stop while it waited."""


class Backoff:
    """Runs work again and again while a server that it needs is unavailable."""

    def __init__(
        self,
        stop: asyncio.Event,
        *,
        first_seconds: float = _FIRST_SECONDS,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self._stop = stop
        self._first = first_seconds
        self._heartbeat = heartbeat or Heartbeat()
        # One entry for each piece of work that waits: the servers that it waits for, and why.
        self._waiting: list[dict[str, str]] = []
        self._check: Callable[[], Awaitable[None]] | None = None

    @property
    def unavailable(self) -> dict[str, str]:
        """The servers that work waits for, and why."""
        return {server: why for reasons in self._waiting for server, why in reasons.items()}

    def set_precondition(self, check: Callable[[], Awaitable[None]]) -> None:
        """Start no work from now on while `check` raises that a server is unavailable."""
        self._check = check

    async def find_reason(self, server: str) -> str | None:
        """Return why work waits for a server; None if none does."""
        return self.unavailable.get(server)

    async def retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the work's result. Raises Stopped, or an error that is no server's absence."""
        reasons: dict[str, str] = {}
        self._waiting.append(reasons)
        try:
            return await self._try(work, reasons)
        finally:
            # Remove our own entry only: other work may still wait for the same server.
            self._waiting = [other for other in self._waiting if other is not reasons]

    async def _try(self, work: Callable[[], Awaitable[T]], reasons: dict[str, str]) -> T:
        wait = self._first
        while True:
            # A process that waits for a server is alive: a restart would not bring the server back.
            self._heartbeat.beat()
            try:
                if self._check is not None:
                    await self._check()
                return await work()
            except Exception as error:  # sorted by its kind: anything else is raised
                server = find_server(error)
                if server is None:
                    raise
                reasons[server] = f"{type(error).__name__}: {error}"[:500]
                self._log_failure(server, error, wait)
            if await pause(self._stop, wait):
                raise Stopped
            wait = min(wait * 2, _LONGEST_SECONDS)

    def _log_failure(self, server: str, error: Exception, wait: float) -> None:
        TROUBLE.labels(server).inc()
        _log.warning(
            "a server is unavailable",
            action="waiting",
            server=server,
            error=str(error),
            seconds=wait,
        )


async def pause(stop: asyncio.Event, seconds: float) -> bool:
    """Wait, and return whether the service was asked to stop meanwhile."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
