"""Counts partitions that are no longer written, a few seconds of each turn."""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.query import counting

from .leadership_check import LeadershipCheck
from .turn_schedule import TurnSchedule

_SECONDS: Final = 10.0


class PartitionCounter:
    """Begins after each schedule, and continues in every turn until all are counted.

    Erasures do not wait for it.
    """

    def __init__(self, engine: AsyncEngine, check: LeadershipCheck, schedule: TurnSchedule) -> None:
        self._engine = engine
        self._check = check
        self._schedule = schedule
        # the last completed schedule after which all were counted
        self._counted = 0

    def is_due(self) -> bool:
        """Check whether a partition may be left to count."""
        return self._counted < self._schedule.completed

    async def count(self) -> None:
        """Count for a few seconds. Raises Stopped."""
        schedule = self._schedule.completed
        is_complete = counting.count_ended(
            self._engine, seconds=_SECONDS, step=self._check.confirm_step
        )
        if await self._check.unless_stopped(is_complete):
            self._counted = schedule
