"""Works on requested and unfinished erasures, a share of the time for each."""

import time
from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.erasure.progress import Erasure, list_unfinished

from .eraser import Eraser
from .leadership_check import LeadershipCheck
from .marker import Marker
from .orphan_eraser import OrphanEraser
from .turn_schedule import TurnSchedule

_SHARE_SECONDS: Final = 10.0
_RESUME_SECONDS: Final = 60.0


class ErasureWorker:
    """Marks and erases.

    Raises Stopped, ObjectStoreUnavailable and the errors of the database.
    """

    def __init__(  # noqa: PLR0917
        self,
        engine: AsyncEngine,
        marker: Marker,
        eraser: Eraser,
        orphans: OrphanEraser,
        check: LeadershipCheck,
        schedule: TurnSchedule,
        *,
        batch: int,
    ) -> None:
        self._engine = engine
        self._marker = marker
        self._eraser = eraser
        self._orphans = orphans
        self._check = check
        self._schedule = schedule
        self._batch = batch

    async def resume(self) -> None:
        """Work on requested and unfinished erasures; on failed ones when the schedule is due.

        Each gets a share of the time, over and over, so that none waits for the longest of them.
        The rest of a turn does not wait long either.
        """
        until = time.monotonic() + _RESUME_SECONDS
        await self._mark_released()
        begun = await self._list_unfinished(failed=self._schedule.is_due())
        while begun and time.monotonic() < until:
            begun = [erasure for erasure in begun if not await self._work(erasure)]
            requested = await self._list_unfinished(failed=False)
            ids = {erasure.id for erasure in begun}
            begun += [erasure for erasure in requested if erasure.id not in ids]

    async def _list_unfinished(self, *, failed: bool) -> list[Erasure]:
        async with self._engine.connect() as connection:
            return await list_unfinished(connection, failed=failed)

    async def _mark_released(self) -> None:
        """Mark again the inferences whose hold has been released since."""
        marked = 1
        while marked:
            await self._check.confirm_step()
            async with self._engine.begin() as connection:
                marked = await resume_released(connection, limit=self._batch)
            if marked:
                self._marker.search_again()
                # they may lie before the position at which an erasure continues
                self._eraser.positions.clear()

    async def _work(self, erasure: Erasure) -> bool:
        """Work on an erasure; True if it is over, or if nothing more can be done now."""
        if erasure.cause == "orphans":
            return await self._orphans.work(erasure, seconds=_SHARE_SECONDS)
        marked = await self._marker.mark(erasure, seconds=_SHARE_SECONDS)
        if marked == "all":
            return await self._eraser.finish(erasure, seconds=_SHARE_SECONDS) is not None
        return marked == "over"
