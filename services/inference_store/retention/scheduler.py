"""The schedule of runs."""

import asyncio
from datetime import UTC, datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler


class Schedule:
    """Sets `due` at the start and then at every interval; missed runs become one."""

    def __init__(self, interval_seconds: float) -> None:
        self.due = asyncio.Event()
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._scheduler.add_job(
            self._fire,
            "interval",
            seconds=interval_seconds,
            id="retention",
            coalesce=True,
            max_instances=1,
            misfire_grace_time=None,
            next_run_time=datetime.now(UTC),
        )

    def start(self) -> None:
        """Begin; the first run is due at once."""
        self._scheduler.start()

    def stop(self) -> None:
        """Stop: no run becomes due after this."""
        self._scheduler.shutdown(wait=False)

    async def _fire(self) -> None:
        self.due.set()
