"""Do the bucket and Postgres agree? Looked at when a service starts, and from time to time."""

import asyncio
import time
from contextlib import suppress

import structlog

from inference_store.index.database import is_trouble
from inference_store.inference.errors import BlobsAway, LedgerApart
from inference_store.platform.metrics import LEDGER_APART

from .ledger import Ledger

LOOK_SECONDS = 30.0
_SOON_SECONDS = 1.0
_log = structlog.get_logger()


class LedgerWatch:
    """What was found when the two were last compared; nothing may be served before they were."""

    def __init__(self, ledger: Ledger, *, every_seconds: float = LOOK_SECONDS) -> None:
        self._ledger = ledger
        self._every = every_seconds
        self._lock = asyncio.Lock()
        self._looked_at: float | None = None
        self._apart: LedgerApart | None = None

    async def look(self) -> None:
        """Compare them now. Raises LedgerApart; BlobsAway and the database's trouble, which leave
        what was found before."""
        async with self._lock:
            await self._look()

    async def require(self) -> None:
        """Raise LedgerApart unless they agreed when last compared; compares where none has yet."""
        if self._looked_at is None:
            async with self._lock:
                if self._looked_at is None:
                    await self._look()
        if self._apart is not None:
            raise self._apart

    async def if_due(self) -> None:
        """Compare where the last look is long ago. Raises as `look` does."""
        now = time.monotonic()
        if self._apart or self._looked_at is None or now - self._looked_at >= self._every:
            await self.look()

    async def reason(self) -> str | None:
        """Why nothing is served; None where they agree."""
        if self._apart is not None:
            return self._apart.detail
        return "not compared with the bucket yet" if self._looked_at is None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Compare until stopped; a server that is away is met by whoever needs it."""
        while not stop.is_set():
            try:
                await self.look()
            except LedgerApart:
                pass  # said by `_look`
            except Exception as error:
                if not isinstance(error, BlobsAway | OSError) and not is_trouble(error):
                    raise
                _log.debug("the ledger is not compared", action="ledger", error=str(error)[:500])
            agree = self._looked_at is not None and self._apart is None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._every if agree else _SOON_SECONDS)

    async def _look(self) -> None:
        try:
            await self._ledger.look()
        except LedgerApart as apart:
            _log.error("the ledger is apart", action="ledger_apart", detail=apart.detail)
            self._apart, self._looked_at = apart, time.monotonic()
            LEDGER_APART.set(1)
            raise
        self._apart, self._looked_at = None, time.monotonic()
        LEDGER_APART.set(0)
