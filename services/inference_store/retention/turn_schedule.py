"""The state of the schedule at the beginning of the current turn."""

import asyncio


class TurnSchedule:
    """Reads `due` once for each turn: if it is set in the middle of one, the next turn sees it."""

    def __init__(self, due: asyncio.Event) -> None:
        self._due = due
        self._is_due = False
        self.completed = 0
        """The number of completed schedules."""

    def begin_turn(self) -> None:
        """Read whether the schedule is due."""
        self._is_due = self._due.is_set()

    def is_due(self) -> bool:
        """Check whether the schedule was due when this turn began."""
        return self._is_due

    async def complete(self) -> None:
        """Clear the schedule: all its jobs are done."""
        self._due.clear()
        self.completed += 1
