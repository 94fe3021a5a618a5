"""Many bad messages stop the line: a bad deploy must not empty the topic into the dead letters."""

from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import dead_letters
from inference_store.store.metrics import HALTED
from inference_store.store.settings import IngesterSettings


class Halted(Exception):
    """Too many events cannot be stored: nothing more is read until the window has passed."""


@dataclass(slots=True)
class DeadLetterLimit:
    """Counts events and those set aside within a window; parked ones count.

    What was set aside before this process began counts as well: a restart is no way around.
    """

    settings: IngesterSettings
    reason: str | None = None
    _window: deque[tuple[float, int, int]] = field(default_factory=deque)

    async def check(
        self, connection: AsyncConnection, *, now: float, events: int, set_aside: int
    ) -> None:
        """Let a batch pass, or raise Halted, which rolls back. `now`: the loop's clock, seconds.

        In the batch's transaction: what it sets aside is counted with the rest.
        """
        if set_aside == 0:
            self._pass(now, events, 0)
            return
        length = self.settings.ingester_dead_letter_window_seconds
        while self._window and self._window[0][0] < now - length:
            self._window.popleft()
        bad = await dead_letters.set_aside_since(connection, timedelta(seconds=length))
        before = max(0, bad - set_aside)
        total = events + max(before, sum(count for _, count, _ in self._window))
        if bad > self.settings.ingester_dead_letter_limit and self._share_is_over(bad, total):
            self._halt(bad, total)
        self._pass(now, events, set_aside)

    def _share_is_over(self, bad: int, total: int) -> bool:
        return bad / max(total, 1) > self.settings.ingester_dead_letter_share

    def _halt(self, bad: int, total: int) -> None:
        self.reason = (
            f"{bad} of the last {total} events could not be stored"
            f" (limit {self.settings.ingester_dead_letter_limit},"
            f" share {self.settings.ingester_dead_letter_share}): look at the dead letters,"
            " then mend the cause or raise INFERENCE_STORE_INGESTER_DEAD_LETTER_LIMIT"
        )
        HALTED.set(1)
        raise Halted(self.reason)

    def _pass(self, now: float, events: int, set_aside: int) -> None:
        self.reason = None
        HALTED.set(0)
        self._window.append((now, events, set_aside))
