"""Compares the bucket with Postgres when a service starts, and from time to time."""

import asyncio
import time
from contextlib import suppress

import structlog

from inference_store.index.database import is_transient
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.platform.metrics import LEDGER_APART

from .ledger import Ledger

COMPARE_SECONDS = 30.0
_SOON_SECONDS = 1.0
_log = structlog.get_logger()


class LedgerWatch:
    """The result of the last comparison; nothing may be served before there is one."""

    def __init__(self, ledger: Ledger, *, every_seconds: float = COMPARE_SECONDS) -> None:
        self._ledger = ledger
        self._every = every_seconds
        self._lock = asyncio.Lock()
        self._compared_at: float | None = None
        self._apart: LedgerDiverged | None = None

    async def compare(self) -> None:
        """Compare them now.

        Raises LedgerDiverged; ObjectStoreUnavailable and the errors of the database, after which
        the last result stands.
        """
        async with self._lock:
            await self._compare()

    async def require(self) -> None:
        """Raise LedgerDiverged unless they agreed when last compared; compare if never done."""
        if self._compared_at is None:
            async with self._lock:
                if self._compared_at is None:
                    await self._compare()
        if self._apart is not None:
            raise self._apart

    async def compare_if_due(self) -> None:
        """Compare if the last comparison is long ago. Raises as `compare`."""
        now = time.monotonic()
        if self._apart or self._compared_at is None or now - self._compared_at >= self._every:
            await self.compare()

    async def reason(self) -> str | None:
        """Return why nothing is served; None if they agree."""
        if self._apart is not None:
            return self._apart.detail
        return "not compared with the bucket yet" if self._compared_at is None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Compare until stopped. An unavailable server is reported by whoever needs it."""
        while not stop.is_set():
            try:
                await self.compare()
            except LedgerDiverged:
                pass  # logged by `_compare`
            except Exception as error:
                if not isinstance(error, ObjectStoreUnavailable | OSError) and not is_transient(
                    error
                ):
                    raise
                _log.debug("the ledger is not compared", action="ledger", error=str(error)[:500])
            agree = self._compared_at is not None and self._apart is None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._every if agree else _SOON_SECONDS)

    async def _compare(self) -> None:
        try:
            await self._ledger.compare()
        except LedgerDiverged as apart:
            _log.error("the ledger is apart", action="ledger_apart", detail=apart.detail)
            self._apart, self._compared_at = apart, time.monotonic()
            LEDGER_APART.set(1)
            raise
        self._apart, self._compared_at = None, time.monotonic()
        LEDGER_APART.set(0)
