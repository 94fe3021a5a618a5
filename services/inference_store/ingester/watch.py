"""Sets the gauges that must change even if no events arrive: lag, accounting, partitions ahead;
stores the lag for the api; and ends sessions in which a frozen ingester holds locks.

Lag is measured on a clock, not when a batch is written: it must rise while the pipeline is stuck.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime

import structlog
from aiokafka.errors import IllegalStateError, KafkaError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.accounting import LogEnd, PartitionId, store_ends
from inference_store.index.stalled_sessions import end_stalled_sessions
from inference_store.operations import figures
from inference_store.operations.figures import compute_age
from inference_store.platform import metrics

from .batch import AssignedPartition
from .consumer import Consumer

_EVERY_SECONDS = 5.0
# The api shows what was stored last, and when.
_STORE_SECONDS = 15.0
# The sequences of many producers take long to add up.
_PRODUCERS_SECONDS = 60.0
# By then another ingester has the partitions, and waits for the locks of the frozen one.
STALLED_SECONDS = 60.0
_POSTGRES = (DBAPIError, PoolTimeout)
_log = structlog.get_logger()


class Watch:
    """Sets the gauges every five seconds, until stopped."""

    def __init__(self, consumer: Consumer, engine: AsyncEngine, stop: asyncio.Event) -> None:
        self._consumer = consumer
        self._engine = engine
        self._stop = stop
        self._ends: dict[AssignedPartition, int] = {}
        self._are_ends_new = False
        self._stored_at = self._producers_at = float("-inf")
        self._parked: datetime | None = None
        self._shown: set[str] = set()

    async def run(self) -> None:
        """Run until stopped. The pipeline reports unavailable servers: here values only age."""
        while not self._stop.is_set():
            # One by one: Kafka's figures must change while Postgres hangs, and the reverse.
            await self._try(self._read_kafka)
            await self._try(self._read_postgres)
            await self._try(self._read_producers)
            await self._try(self._end_stalled)
            await self._try(self._store_ends)
            self._show_lag(self._consumer.assigned)
            try:
                await asyncio.wait_for(self._stop.wait(), _EVERY_SECONDS)
            except TimeoutError:
                continue

    async def _try(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_EVERY_SECONDS):
                await work()
        except (TimeoutError, KafkaError, IllegalStateError, *_POSTGRES, OSError) as error:
            _log.debug("gauges are not fresh", action="watch", error=type(error).__name__)

    async def _read_kafka(self) -> None:
        self._ends = await self._consumer.find_ends()
        self._are_ends_new = True

    async def _read_postgres(self) -> None:
        async with self._engine.connect() as connection:
            totals = await figures.read_accounting(connection)
            partitions = await figures.read_partitions(connection)
        self._parked = totals.parked_record_time
        _show_accounting(totals)
        metrics.PARTITIONS.set(partitions.count)
        metrics.PARTITIONS_AHEAD.set(partitions.ahead_seconds)

    async def _read_producers(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._producers_at + _PRODUCERS_SECONDS:
            return
        async with self._engine.connect() as connection:
            producers = await figures.read_producers(connection)
        for state, count in producers.states.items():
            metrics.PRODUCERS.labels(state).set(count)
        metrics.PRODUCERS_OPEN.set(producers.open)
        self._producers_at = now

    async def _end_stalled(self) -> None:
        async with self._engine.connect() as connection:
            ended = await end_stalled_sessions(connection, seconds=STALLED_SECONDS)
        if ended:
            metrics.STALLED.inc(ended)
            _log.warning("sessions of a frozen ingester ended", action="stalled", sessions=ended)

    async def _store_ends(self) -> None:
        """Store the ends of the logs for the api, if they were measured since the last time."""
        now = asyncio.get_running_loop().time()
        if not self._are_ends_new or now < self._stored_at + _STORE_SECONDS:
            return
        self._are_ends_new = False
        ends = dict(_list_ends(self._consumer.assigned, self._ends))
        async with self._engine.begin() as connection:
            await store_ends(connection, ends)
        self._stored_at = now

    def _show_lag(self, assigned: Iterable[AssignedPartition]) -> None:
        lags = {
            str(consumed.partition): _measure_lag(consumed, self._ends) for consumed in assigned
        }
        ages = {partition: compute_age(at) for partition, (_, at) in lags.items()}
        for partition, (events, _) in lags.items():
            metrics.LAG.labels(partition).set(events)
            metrics.LAG_SECONDS.labels(partition).set(ages[partition])
        for partition in self._shown - lags.keys():  # another ingester has it now
            metrics.LAG.remove(partition)
            metrics.LAG_SECONDS.remove(partition)
        self._shown = set(lags)
        metrics.OLDEST.set(max([*ages.values(), compute_age(self._parked)]))


def _list_ends(
    assigned: Iterable[AssignedPartition], ends: Mapping[AssignedPartition, int]
) -> Iterator[tuple[PartitionId, LogEnd]]:
    for partition in assigned:
        if partition.partition_id is not None and partition in ends:
            events, oldest = _measure_lag(partition, ends)
            yield partition.partition_id, LogEnd(partition.written + events, oldest)


def _measure_lag(
    assigned: AssignedPartition, ends: Mapping[AssignedPartition, int]
) -> tuple[int, datetime | None]:
    """Return the number of offsets that are not written, and the time of the oldest of them.

    If the oldest has not been read, it is the time of the last one written: it is no older.
    """
    end = ends.get(assigned, assigned.next)
    events = max(0, max(end, assigned.next) - assigned.written)
    if not events:
        return 0, None
    return events, assigned.in_flight[0][1] if assigned.in_flight else assigned.written_at


def _show_accounting(totals: figures.AccountingFigures) -> None:
    for outcome, count in totals.counts.items():
        metrics.BOOKS.labels(outcome.value).set(count)
    metrics.BOOKS_OPEN.set(totals.open_partitions)
    metrics.DEAD_OPEN.set(totals.dead_letters_open)
    metrics.PARKED.set(totals.parked)
    metrics.PARKED_OLDEST.set(totals.parked_oldest_seconds)
