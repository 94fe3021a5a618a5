"""Retries parked events that are due, and dead letters that someone redrives.

There is no new offset: the record is read from Postgres, and its state in the accounting changes.
Fetching is done before the transactions. These are small, because they hold the fence and the
accounting; each handles only events that are still as they were read, and not locked.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from opentelemetry.trace import SpanKind
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, unsettled
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.sidecars import Sidecar
from inference_store.index.unsettled import Rejection, UnsettledEvent
from inference_store.index.writing import Indexable
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.ingester.reader import Reader
from inference_store.ingester.writer import RegistrationGone, Writer, keep
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import PARKED_TRIES
from inference_store.platform.settings import IngesterSettings

from .backoff import Backoff, Stopped

_EVERY_SECONDS = 1.0
# At once, before the next look.
_MOST_TRIED = 200
# In one transaction.
_MOST_EVENTS = 20


class Retries:
    """Tries parked and redriven events again, until stopped."""

    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        reader: Reader,
        writer: Writer,
        *,
        schedule: unsettled.Schedule,
        backoff: Backoff,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._schedule = schedule
        self._backoff = backoff
        self._stop = stop

    async def run(self) -> None:
        """Look for due events every second, and at once again while there are more."""
        while not self._stop.is_set():
            try:
                more = await self._backoff.retry(self.once)
                if not more:
                    await asyncio.wait_for(self._stop.wait(), _EVERY_SECONDS)
            except (TimeoutError, RegistrationGone):
                continue
            except Stopped:
                return

    async def once(self) -> int:
        """Try the events that are due, and return their number."""
        async with self._engine.connect() as connection:
            events = await unsettled.find_due(connection, limit=_MOST_TRIED)
        if not events:
            return 0
        attributes: traces.Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "retry",
            "messaging.batch.message_count": len(events),
        }
        with traces.ended(traces.begin("retry", SpanKind.CONSUMER, attributes)):
            await self._try(sorted(events, key=lambda event: event.record.partition_id))
        return len(events)

    async def _try(self, events: Sequence[UnsettledEvent]) -> None:
        reads = await self._reader.read([event.record for event in events])
        by_place = {(read.record.partition_id, read.record.offset): read for read in reads}
        results = {e.id: by_place[e.record.partition_id, e.record.offset] for e in events}
        await self._writer.prepare(reads)
        failpoint("ingester.retry.before")
        for start in range(0, len(events), _MOST_EVENTS):
            some = events[start : start + _MOST_EVENTS]
            await self._writer.attempt(partial(self._settle_all, some, results))
            failpoint("ingester.retry.commit.after")

    async def _settle_all(
        self,
        events: Sequence[UnsettledEvent],
        results: Mapping[int, ReadRecord],
        one_by_one: bool,
    ) -> None:
        changes: dict[PartitionId, Counter[Outcome]] = {}
        async with self._engine.begin() as connection:
            # The accounting first, in the pipeline's order, so that the two cannot deadlock.
            await accounting.lock_partitions(
                connection, {event.record.partition_id for event in events}
            )
            # and what all of them need, before the first is written
            await keep(connection, [results[event.id] for event in events])
            for event in await unsettled.lock(connection, events):
                was = Outcome.PARKED if event.state == "parked" else Outcome.DEAD
                outcome = await self._settle(connection, event, results[event.id], one_by_one)
                counts = changes.setdefault(event.record.partition_id, Counter())
                counts.update({outcome: 1})
                counts.subtract({was: 1})
            await accounting.change_outcomes(connection, changes)
            failpoint("ingester.retry.commit.before")

    async def _settle(
        self, connection: AsyncConnection, event: UnsettledEvent, read: ReadRecord, one_by_one: bool
    ) -> Outcome:
        """Try an event; the writer parks it, or makes it an open dead letter, in its row."""
        outcome = await self._index(connection, read, one_by_one)
        if outcome is Outcome.PARKED and event.state == "parked":
            if datetime.now(UTC) - event.created_at < self._schedule.give_up:
                await unsettled.postpone(connection, event, self._schedule)
                return outcome
            gave_up = ReadRecord(read.record, _give_up(read.result, event))
            outcome = await self._index(connection, gave_up, one_by_one)
        if outcome not in (Outcome.PARKED, Outcome.DEAD):
            await unsettled.settle(connection, event.id, outcome.value)
        return outcome

    async def _index(
        self, connection: AsyncConnection, read: ReadRecord, one_by_one: bool
    ) -> Outcome:
        sidecars: list[Sidecar] = []
        settled = await self._writer.index(
            connection, [read], sidecars=sidecars, one_by_one=one_by_one
        )
        await self._writer.put(connection, sidecars)
        ((_, outcome),) = settled
        PARKED_TRIES.labels(outcome.value).inc()
        return outcome


def _give_up(result: Indexable | Rejection | MissingBlob, event: UnsettledEvent) -> Rejection:
    tries = f"within {event.attempts + 1} tries"
    reason = "blob_missing"
    if isinstance(result, MissingBlob):
        reason = result.reason
        detail = f"{result.storage_key} did not come {tries}"
        if result.detail:
            detail += f": {result.detail}"
    else:
        detail = f"what it needs was being deleted, and did not come free {tries}"
    return Rejection(reason, detail, event.rejection.model_id, event.rejection.inference_id)
