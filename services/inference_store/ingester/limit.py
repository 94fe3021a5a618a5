"""Many bad messages stop the pipeline: a bad deploy must not empty the topic into the dead letters.

It stops only if the failures are general. If few sources fail while the events of the others are
stored, the failing events are quarantined, and the other sources do not wait.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import quarantine
from inference_store.index.accounting import Outcome
from inference_store.index.quarantine import QuarantineShare
from inference_store.platform.metrics import HALTED
from inference_store.platform.settings import IngesterSettings

from .batch import ReadRecord
from .sources import Source, Sources

GENERAL_SHARE: Final = 0.5
"""Failures are general if their sources sent more than this share of recently stored events."""
_log = structlog.get_logger()


class Halted(Exception):
    """Too many events cannot be stored: nothing more is read until the window has passed."""


class DeadLetterLimit:
    """Counts events and those quarantined within a window, by the accounting of all ingesters.

    Parked events count. A restart does not reset it; `inference-store resume` lifts it.
    """

    def __init__(self, settings: IngesterSettings) -> None:
        self.reason: str | None = None
        self._settings = settings
        self._sources = Sources(settings.ingester_dead_letter_window_seconds)
        self._last_reported: Source | None = None

    async def check(
        self, connection: AsyncConnection, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Let a batch pass, or raise Halted, which rolls back.

        It runs in the batch's transaction, so that the batch's quarantined events are counted.
        """
        if any(outcome in {Outcome.DEAD, Outcome.PARKED} for _, outcome in outcomes):
            window = timedelta(seconds=self._settings.ingester_dead_letter_window_seconds)
            counts = await quarantine.count_quarantined(connection, window)
            counts = QuarantineShare(counts.quarantined, counts.events + len(outcomes))
            if self._is_over(counts) and not await quarantine.limit_is_lifted(connection):
                self._refuse_general(counts, outcomes)
        self.reason = None
        HALTED.set(0)

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """Remember the outcomes of each source's events, after a batch was written."""
        self._sources.note(outcomes)

    def _is_over(self, counts: QuarantineShare) -> bool:
        settings = self._settings
        over = counts.quarantined > settings.ingester_dead_letter_limit
        return over and counts.quarantined > settings.ingester_dead_letter_share * counts.events

    def _refuse_general(
        self, counts: QuarantineShare, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Raise Halted unless only few sources fail."""
        tried = self._sources.copied()
        tried.note(outcomes)
        if tried.failing_share > GENERAL_SHARE:
            self._halt(counts)
        if self._last_reported != tried.worst:
            self._last_reported = tried.worst
            producer, model_id = tried.worst
            _log.warning(
                "the events of few sources cannot be stored; the others are",
                action="confined", producer=producer, model_id=model_id, aside=counts.quarantined,
            )  # fmt: skip

    def _halt(self, counts: QuarantineShare) -> None:
        self.reason = (
            f"{counts.quarantined} of the last {counts.events} events could not be stored"
            f" (limit {self._settings.ingester_dead_letter_limit},"
            f" share {self._settings.ingester_dead_letter_share}): look at the dead letters,"
            " then fix the cause, raise INFERENCE_STORE_INGESTER_DEAD_LETTER_LIMIT, or let them"
            " be set aside for a while: inference-store resume"
        )
        HALTED.set(1)
        raise Halted(self.reason)
