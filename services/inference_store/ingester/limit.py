"""Many bad messages stop the line: a bad deploy must not empty the topic into the dead letters."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import set_aside
from inference_store.store.metrics import HALTED
from inference_store.store.settings import IngesterSettings


class Halted(Exception):
    """Too many events cannot be stored: nothing more is read until the window has passed."""


@dataclass(slots=True)
class DeadLetterLimit:
    """Counts events and those set aside within a window, by the books of all ingesters.

    Parked ones count. A restart is no way around.
    """

    settings: IngesterSettings
    reason: str | None = None

    async def check(self, connection: AsyncConnection, *, events: int, aside: int) -> None:
        """Let a batch pass, or raise Halted, which rolls back.

        In the batch's transaction: what it sets aside is counted with the rest.
        """
        if aside:
            window = timedelta(seconds=self.settings.ingester_dead_letter_window_seconds)
            found = await set_aside.since(connection, window)
            total = found.events + events
            over = found.aside > self.settings.ingester_dead_letter_limit
            if over and found.aside > self.settings.ingester_dead_letter_share * total:
                self._halt(found.aside, total)
        self.reason = None
        HALTED.set(0)

    def _halt(self, bad: int, total: int) -> None:
        self.reason = (
            f"{bad} of the last {total} events could not be stored"
            f" (limit {self.settings.ingester_dead_letter_limit},"
            f" share {self.settings.ingester_dead_letter_share}): look at the dead letters,"
            " then mend the cause or raise INFERENCE_STORE_INGESTER_DEAD_LETTER_LIMIT"
        )
        HALTED.set(1)
        raise Halted(self.reason)
