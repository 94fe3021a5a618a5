"""Retries parked events that are due, and dead letters that someone redrives.

There is no new offset: the record is read from Postgres, and its state in the accounting changes.
Fetching is done before the transactions. These are small, because they hold the fence and the
accounting; each handles only events that still exist and are not locked.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from opentelemetry.trace import SpanKind
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, dead_letters, parked
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.dead_letters import DeadLetter
from inference_store.index.parked import ParkedEvent
from inference_store.index.records import Record, Rejection
from inference_store.index.sidecars import Sidecar
from inference_store.index.writing import Indexable
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import PARKED_TRIES
from inference_store.platform.settings import IngesterSettings

from .backoff import Backoff, Stopped
from .batch import MissingBlob, ReadRecord
from .reader import Reader
from .write import RegistrationGone, Writer, keep

_EVERY_SECONDS = 1.0
# At once, before the next look.
_MOST_TRIED = 200
# In one transaction.
_MOST_EVENTS = 20
_log = structlog.get_logger()
_Changes = dict[PartitionId, Counter[Outcome]]
_Event = ParkedEvent | DeadLetter


class Retries:
    """Tries parked and redriven events again, until stopped."""

    def __init__(
        self,
        settings: IngesterSettings,
        engine: AsyncEngine,
        reader: Reader,
        writer: Writer,
        *,
        schedule: parked.Schedule,
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
            waiting = await parked.due(connection, limit=_MOST_TRIED)
            letters = await dead_letters.to_redrive(connection, limit=_MOST_TRIED)
        if not waiting and not letters:
            return 0
        events: list[_Event] = sorted(
            [*waiting, *letters], key=lambda event: event.record.partition_id
        )
        attributes: traces.Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "retry",
            "messaging.batch.message_count": len(events),
        }
        with traces.ended(traces.begin("retry", SpanKind.CONSUMER, attributes)):
            await self._try(events)
        return len(events)

    async def _try(self, events: Sequence[_Event]) -> None:
        reads = await self._reader.read([event.record for event in events])
        results = {(read.record.partition_id, read.record.offset): read for read in reads}
        await self._writer.prepare(reads)
        failpoint("ingester.retry.before")
        for start in range(0, len(events), _MOST_EVENTS):
            some = events[start : start + _MOST_EVENTS]
            await self._writer.attempt(partial(self._settle, some, results))
            failpoint("ingester.retry.commit.after")

    async def _settle(
        self,
        events: Sequence[_Event],
        results: Mapping[tuple[PartitionId, int], ReadRecord],
        one_by_one: bool,
    ) -> None:
        changes: _Changes = {}
        waiting = [event for event in events if isinstance(event, ParkedEvent)]
        letters = [event for event in events if isinstance(event, DeadLetter)]
        async with self._engine.begin() as connection:
            # The accounting first, in the pipeline's order, so that the two cannot deadlock.
            await accounting.lock_partitions(
                connection, {event.record.partition_id for event in events}
            )
            # and what all of them need, before the first is written
            await keep(
                connection, [results[e.record.partition_id, e.record.offset] for e in events]
            )
            ours = await parked.lock(connection, [event.id for event in waiting])
            for event in waiting:
                if event.id in ours:
                    read = results[event.record.partition_id, event.record.offset]
                    await self._settle_parked(connection, event, read, changes, one_by_one)
            redriven = await dead_letters.lock(connection, [letter.id for letter in letters])
            for letter in letters:
                if letter.id in redriven:
                    read = results[letter.record.partition_id, letter.record.offset]
                    await self._settle_letter(connection, letter, read, changes, one_by_one)
            await accounting.change_outcomes(connection, changes)
            failpoint("ingester.retry.commit.before")

    async def _settle_parked(
        self,
        connection: AsyncConnection,
        event: ParkedEvent,
        read: ReadRecord,
        changes: _Changes,
        one_by_one: bool,
    ) -> None:
        # The row still exists: an event that is parked again keeps it, with its age and its tries.
        outcome = await self._index(connection, read, one_by_one)
        if outcome is Outcome.PARKED:
            if datetime.now(UTC) - event.created_at < self._schedule.give_up:
                await parked.postpone(connection, event, self._schedule)
                return
            gave_up = ReadRecord(read.record, _gave_up(read.result, event))
            outcome = await self._index(connection, gave_up, one_by_one)
        await parked.remove(connection, event.id)
        if outcome is not Outcome.DEAD:
            await dead_letters.settle_parked(connection, event.record, outcome.value)
        _move(changes, event.record, Outcome.PARKED, outcome)

    async def _settle_letter(
        self,
        connection: AsyncConnection,
        letter: DeadLetter,
        read: ReadRecord,
        changes: _Changes,
        one_by_one: bool,
    ) -> None:
        if isinstance(read.result, Rejection):
            await dead_letters.reopen(connection, letter.id, read.result)
            PARKED_TRIES.labels("dead").inc()
            return
        outcome = await self._index(connection, read, one_by_one)
        if outcome is Outcome.DEAD:
            again = Rejection("unindexable", "Postgres refuses it still", *_ids(letter))
            await dead_letters.reopen(connection, letter.id, again)
            return
        await dead_letters.settle(connection, letter.id, outcome.value)
        _move(changes, letter.record, Outcome.DEAD, outcome)

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


def _ids(letter: DeadLetter) -> tuple[str | None, str | None]:
    return letter.rejection.model_id, letter.rejection.inference_id


def _gave_up(result: Indexable | Rejection | MissingBlob, event: ParkedEvent) -> Rejection:
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


def _move(changes: _Changes, record: Record, old: Outcome, new: Outcome) -> None:
    if new is not old:
        counts = changes.setdefault(record.partition_id, Counter())
        counts[old] -= 1
        counts[new] += 1
