"""Many bad messages stop the pipeline: a bad deploy must not empty the topic into the dead letters.

Only if they are general. While most of what is stored otherwise still comes in, what fails is
confined to its sources: it is set aside, and nobody else waits for it.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import set_aside
from inference_store.index.accounting import Outcome
from inference_store.index.set_aside import SetAside
from inference_store.platform.metrics import HALTED
from inference_store.platform.settings import IngesterSettings

from .batch import ReadRecord
from .sources import Source, Sources

GENERAL_SHARE: Final = 0.5
"""What fails is general if its sources sent more than this share of what was stored of late."""
_log = structlog.get_logger()


class Halted(Exception):
    """Too many events cannot be stored: nothing more is read until the window has passed."""


class DeadLetterLimit:
    """Counts events and those set aside within a window, by the books of all ingesters.

    Parked ones count. A restart is no way around; `inference-store resume` is one.
    """

    def __init__(self, settings: IngesterSettings) -> None:
        self.reason: str | None = None
        self._settings = settings
        self._sources = Sources(settings.ingester_dead_letter_window_seconds)
        self._told: Source | None = None

    async def check(
        self, connection: AsyncConnection, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Let a batch pass, or raise Halted, which rolls back.

        In the batch's transaction: what it sets aside is counted with the rest.
        """
        if any(outcome in {Outcome.DEAD, Outcome.PARKED} for _, outcome in outcomes):
            window = timedelta(seconds=self._settings.ingester_dead_letter_window_seconds)
            counts = await set_aside.since(connection, window)
            counts = SetAside(counts.aside, counts.events + len(outcomes))
            if self._is_over(counts) and not await set_aside.limit_is_lifted(connection):
                self._refuse_general(counts, outcomes)
        self.reason = None
        HALTED.set(0)

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """A batch was written: remember what became of each source's events."""
        self._sources.note(outcomes)

    def _is_over(self, counts: SetAside) -> bool:
        settings = self._settings
        over = counts.aside > settings.ingester_dead_letter_limit
        return over and counts.aside > settings.ingester_dead_letter_share * counts.events

    def _refuse_general(
        self, counts: SetAside, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Raise Halted unless what fails is confined to few sources."""
        tried = self._sources.copied()
        tried.note(outcomes)
        if tried.failing_share > GENERAL_SHARE:
            self._halt(counts)
        if self._told != tried.worst:
            self._told = tried.worst
            producer, model_id = tried.worst
            _log.warning(
                "the events of few sources cannot be stored; the others are",
                action="confined", producer=producer, model_id=model_id, aside=counts.aside,
            )  # fmt: skip

    def _halt(self, counts: SetAside) -> None:
        self.reason = (
            f"{counts.aside} of the last {counts.events} events could not be stored"
            f" (limit {self._settings.ingester_dead_letter_limit},"
            f" share {self._settings.ingester_dead_letter_share}): look at the dead letters,"
            " then mend the cause, raise INFERENCE_STORE_INGESTER_DEAD_LETTER_LIMIT, or let them"
            " be set aside for a while: inference-store resume"
        )
        HALTED.set(1)
        raise Halted(self.reason)
