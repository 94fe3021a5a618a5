"""Many bad messages stop the pipeline: a bad deploy must not empty the topic into the dead letters.
Below: which sources fail, and which servers work waits for.

It stops only if the failures are general. If few sources fail while the events of the others are
stored, the failing events are quarantined, and the other sources do not wait.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import structlog
from aiokafka.errors import KafkaError
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import unsettled
from inference_store.index.accounting import Outcome
from inference_store.index.database import is_transient
from inference_store.index.writing import Indexable
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable
from inference_store.ingester.batch import ReadRecord
from inference_store.platform.backoff import Backoff
from inference_store.platform.metrics import HALTED, TROUBLE
from inference_store.platform.serving import Heartbeat
from inference_store.platform.settings import IngesterSettings

WINDOW_SECONDS: Final = 600.0
MOST_SHARE: Final = 0.2
"""Share of the window's events that may be set aside; over it and over the limit it stops."""
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
        self._sources = Sources(WINDOW_SECONDS)
        self._last_reported: Source | None = None

    async def check(
        self, connection: AsyncConnection, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        """Let a batch pass, or raise Halted, which rolls back.

        It runs in the batch's transaction, so that the batch's quarantined events are counted.
        """
        if any(outcome in {Outcome.DEAD, Outcome.PARKED} for _, outcome in outcomes):
            window = timedelta(seconds=WINDOW_SECONDS)
            aside, events = await unsettled.count_quarantined(connection, window)
            events += len(outcomes)
            most = max(self._settings.ingester_dead_letter_limit, MOST_SHARE * events)
            if aside > most and not await unsettled.limit_is_lifted(connection):
                self._refuse_general(aside, events, outcomes)
        self.reason = None
        HALTED.set(0)

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """Remember the outcomes of each source's events, after a batch was written."""
        self._sources.note(outcomes)

    def _refuse_general(
        self, aside: int, events: int, outcomes: Sequence[tuple[ReadRecord, Outcome]]
    ) -> None:
        tried = self._sources.copied()
        tried.note(outcomes)
        if tried.failing_share > GENERAL_SHARE:
            self.reason = (
                f"{aside} of the last {events} events could not be stored"
                f" (limit {self._settings.ingester_dead_letter_limit},"
                f" share {MOST_SHARE}): look at the dead letters,"
                " then fix the cause, raise INFERENCE_STORE_INGESTER_DEAD_LETTER_LIMIT, or let"
                " them be set aside for a while: inference-store resume"
            )
            HALTED.set(1)
            raise Halted(self.reason)
        if self._last_reported != tried.worst:
            self._last_reported = tried.worst
            producer, model_id = tried.worst
            _log.warning(
                "the events of few sources cannot be stored; the others are",
                action="confined", producer=producer, model_id=model_id, aside=aside,
            )  # fmt: skip


# The sources whose events cannot be stored: the recent outcomes by producer and model.
#
# They are in memory, for this process's own partitions, and empty after a start.

Source: TypeAlias = tuple[str, str]
"""A producer and a model's id; empty if an event names none."""
FAILS_AFTER: Final = 10
"""A source fails if this many of its events in a row were quarantined."""
_MOST: Final = 10_000
_SET_ASIDE: Final = frozenset({Outcome.DEAD, Outcome.PARKED})


@dataclass(slots=True)
class _History:
    stored: int = 0
    stored_before: int = 0
    aside_in_a_row: int = 0

    @property
    def weight(self) -> int:
        return self.stored + self.stored_before


class Sources:
    """The latest sources, with their stored events in this window and the one before."""

    def __init__(self, window_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = window_seconds
        self._clock = clock
        self._began = clock()
        self._histories: OrderedDict[Source, _History] = OrderedDict()

    def copied(self) -> "Sources":
        """Return a copy, in which outcomes can be noted on trial."""
        twin = copy(self)
        twin._histories = OrderedDict(
            (name, copy(history)) for name, history in self._histories.items()
        )
        return twin

    def note(self, outcomes: Iterable[tuple[ReadRecord, Outcome]]) -> None:
        """Note the outcomes of events, in their order."""
        self._move_window()
        for read, outcome in outcomes:
            source = source_of(read)
            history = self._histories.setdefault(source, _History())
            self._histories.move_to_end(source)
            if outcome in _SET_ASIDE:
                history.aside_in_a_row += 1
            else:
                history.stored += 1
                history.aside_in_a_row = 0
        while len(self._histories) > _MOST:
            self._histories.popitem(last=False)

    @property
    def failing_share(self) -> float:
        """The share of failing sources, weighted by their stored events; 1 if there are none."""
        everything = sum(history.weight for history in self._histories.values())
        failing = sum(
            history.weight
            for history in self._histories.values()
            if history.aside_in_a_row >= FAILS_AFTER
        )
        return failing / everything if everything else 1.0

    @property
    def worst(self) -> Source:
        """The source with the most quarantined events in a row."""
        return max(self._histories, key=lambda name: self._histories[name].aside_in_a_row)

    def _move_window(self) -> None:
        passed = int((self._clock() - self._began) // self._window)
        if not passed:
            return
        self._began += passed * self._window
        for history in self._histories.values():
            history.stored_before = history.stored if passed == 1 else 0
            history.stored = 0


def source_of(read: ReadRecord) -> Source:
    """Return the source, as far as the event names it."""
    result = read.result
    of = result.event if isinstance(result, Indexable) else result
    model_id = "" if isinstance(of, Outcome) else of.model_id
    return dict(read.record.headers).get("producer", ""), model_id or ""


# The servers that an ingester may wait for.
SERVERS = ("kafka", "postgres", "object store", "ledger")


def make_backoff(stop: asyncio.Event, *, heartbeat: Heartbeat | None = None) -> Backoff:
    """Return the retries of work that needs any of these servers."""
    return Backoff(
        _find_server,
        lambda server: TROUBLE.labels(server).inc(),
        stop=stop,
        heartbeat=heartbeat,
    )


def _find_server(error: BaseException) -> str | None:
    if isinstance(error, ObjectStoreUnavailable):
        return "object store"
    if isinstance(error, LedgerDiverged):
        return "ledger"
    if isinstance(error, KafkaError):
        return "kafka"
    return "postgres" if is_transient(error) else None
