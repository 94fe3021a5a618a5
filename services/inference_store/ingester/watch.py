"""Gauges that must move also while nothing comes through: lag, books, partitions ahead; and the
end of sessions in which a frozen ingester holds locks.

Lag is asked for on a clock, not when a batch is written: where the line is stuck it must rise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime

import structlog
from aiokafka.errors import IllegalStateError, KafkaError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.stalled_sessions import end_stalled_sessions
from inference_store.operations import figures
from inference_store.operations.figures import age
from inference_store.platform import metrics

from .batch import Assigned
from .consumer import Topic

_EVERY_SECONDS = 5.0
# Another has our partitions by then, and waits for the locks of what we had begun.
STALLED_SECONDS = 60.0
_POSTGRES = (DBAPIError, PoolTimeout)
_log = structlog.get_logger()


class Watch:
    """Sets the gauges every five seconds, until stopped."""

    def __init__(self, topic: Topic, engine: AsyncEngine, stop: asyncio.Event) -> None:
        self._topic = topic
        self._engine = engine
        self._stop = stop
        self._ends: dict[Assigned, int] = {}
        self._parked: datetime | None = None
        self._shown: set[str] = set()

    async def run(self) -> None:
        """A server that is away is the line's to tell: here what was seen last grows older."""
        while not self._stop.is_set():
            # Apart: Kafka's figures must move on while Postgres stands, and the reverse.
            await self._try(self._look_at_kafka)
            await self._try(self._look_at_postgres)
            await self._try(self._end_stalled)
            self._show_lag(self._topic.assigned)
            try:
                await asyncio.wait_for(self._stop.wait(), _EVERY_SECONDS)
            except TimeoutError:
                continue

    async def _try(self, look: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_EVERY_SECONDS):
                await look()
        except (TimeoutError, KafkaError, IllegalStateError, *_POSTGRES, OSError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)

    async def _look_at_kafka(self) -> None:
        self._ends = await self._topic.ends()

    async def _look_at_postgres(self) -> None:
        async with self._engine.connect() as connection:
            of_books = await figures.of_books(connection)
            of_producers = await figures.of_producers(connection)
            of_spans = await figures.of_spans(connection)
        self._parked = of_books.parked_record_time
        _show_books(of_books)
        for state, count in of_producers.states.items():
            metrics.PRODUCERS.labels(state).set(count)
        metrics.PRODUCERS_OPEN.set(of_producers.open)
        metrics.PARTITIONS.set(of_spans.spans)
        metrics.PARTITIONS_AHEAD.set(of_spans.ahead_seconds)

    async def _end_stalled(self) -> None:
        async with self._engine.connect() as connection:
            ended = await end_stalled_sessions(connection, seconds=STALLED_SECONDS)
        if ended:
            metrics.STALLED.inc(ended)
            _log.warning("sessions of a frozen ingester ended", action="stalled", sessions=ended)

    def _show_lag(self, assigned: Iterable[Assigned]) -> None:
        waits = {str(one.partition): _oldest(one, self._ends) for one in assigned}
        ages = {partition: age(at) for partition, (_, at) in waits.items()}
        for partition, (events, _) in waits.items():
            metrics.LAG.labels(partition).set(events)
            metrics.LAG_SECONDS.labels(partition).set(ages[partition])
        for partition in self._shown - waits.keys():  # another ingester's from now on
            metrics.LAG.remove(partition)
            metrics.LAG_SECONDS.remove(partition)
        self._shown = set(waits)
        metrics.OLDEST.set(max([*ages.values(), age(self._parked)]))


def _oldest(one: Assigned, ends: Mapping[Assigned, int]) -> tuple[int, datetime | None]:
    """How many offsets are not in the books, and the time of the oldest of them.

    Where it has not been read, that of the last one written: the oldest is no older.
    """
    end = ends.get(one, one.next)
    events = max(0, max(end, one.next) - one.written)
    if not events:
        return 0, None
    return events, one.in_hand[0][1] if one.in_hand else one.written_at


def _show_books(found: figures.BooksFigures) -> None:
    for outcome, count in found.counts.items():
        metrics.BOOKS.labels(outcome.value).set(count)
    metrics.BOOKS_OPEN.set(found.open_partitions)
    metrics.DEAD_OPEN.set(found.dead_letters_open)
    metrics.PARKED.set(found.parked)
    metrics.PARKED_OLDEST.set(found.parked_oldest_seconds)
