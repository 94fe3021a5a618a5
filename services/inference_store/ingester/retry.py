"""Parked events whose time has come, and dead letters that someone asked to redrive.

No new offset: the record is read again from Postgres, and its state in the books moves. Fetching
is done before the transaction; the transaction then takes only what is still there and unlocked.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.store import books, dead_letters, parked
from inference_store.store.books import Outcome, Place
from inference_store.store.dead_letters import DeadLetter
from inference_store.store.failpoints import failpoint
from inference_store.store.metrics import PARKED_TRIES
from inference_store.store.parked import Parked
from inference_store.store.records import Record, Trouble
from inference_store.store.settings import IngesterSettings

from .batch import MissingBlob, Read
from .patience import Patience, Stopped
from .reading import Reader
from .write import RegistrationGone, Writer

_EVERY_SECONDS = 1.0
_log = structlog.get_logger()
_Changes = dict[Place, Counter[Outcome]]


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
        patience: Patience,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._reader = reader
        self._writer = writer
        self._schedule = schedule
        self._patience = patience
        self._stop = stop

    async def run(self) -> None:
        """Look every second, and at once again while there is more."""
        while not self._stop.is_set():
            try:
                more = await self._patience.until_done(self.once)
                if not more:
                    await asyncio.wait_for(self._stop.wait(), _EVERY_SECONDS)
            except (TimeoutError, RegistrationGone):
                continue
            except Stopped:
                return

    async def once(self) -> int:
        """Try what is due; how many were."""
        limit = self._settings.ingester_parked_batch_events
        async with self._engine.connect() as connection:
            waiting = await parked.due(connection, limit=limit)
            letters = await dead_letters.to_redrive(connection, limit=limit)
        if not waiting and not letters:
            return 0
        records = [*(event.record for event in waiting), *(letter.record for letter in letters)]
        reads = await self._reader.read(records)
        results = {(read.record.place, read.record.offset): read for read in reads}
        await self._writer.prepare(reads)
        failpoint("ingester.retry.before")
        await self._writer.attempt(partial(self._settle, waiting, letters, results))
        failpoint("ingester.retry.commit.after")
        return len(waiting) + len(letters)

    async def _settle(
        self,
        waiting: Sequence[Parked],
        letters: Sequence[DeadLetter],
        results: Mapping[tuple[Place, int], Read],
        one_by_one: bool,
    ) -> None:
        changes: _Changes = {}
        async with self._engine.begin() as connection:
            ours = await parked.lock(connection, [event.id for event in waiting])
            for event in waiting:
                if event.id in ours:
                    read = results[event.record.place, event.record.offset]
                    await self._settle_parked(connection, event, read, changes, one_by_one)
            asked = await dead_letters.lock(connection, [letter.id for letter in letters])
            for letter in letters:
                if letter.id in asked:
                    read = results[letter.record.place, letter.record.offset]
                    await self._settle_letter(connection, letter, read, changes, one_by_one)
            await books.change(connection, changes)
            failpoint("ingester.retry.commit.before")

    async def _settle_parked(
        self,
        connection: AsyncConnection,
        event: Parked,
        read: Read,
        changes: _Changes,
        one_by_one: bool,
    ) -> None:
        if isinstance(read.result, MissingBlob):
            # Erased or expired meanwhile: settled. Else the row stays: it cannot be parked twice.
            outcome = await self._index(connection, read, one_by_one)
            if outcome is not Outcome.PARKED:
                await parked.remove(connection, event.id)
                _move(changes, event.record, Outcome.PARKED, outcome)
                return
            if datetime.now(UTC) - event.created_at < self._schedule.give_up:
                await parked.postpone(connection, event, self._schedule)
                return
            read = Read(read.record, _gave_up(read.result, event))
        # The row goes first: what is parked anew in here gets a row of its own.
        await parked.remove(connection, event.id)
        outcome = await self._index(connection, read, one_by_one)
        _move(changes, event.record, Outcome.PARKED, outcome)

    async def _settle_letter(
        self,
        connection: AsyncConnection,
        letter: DeadLetter,
        read: Read,
        changes: _Changes,
        one_by_one: bool,
    ) -> None:
        if isinstance(read.result, Trouble):
            await dead_letters.reopen(connection, letter.id, read.result)
            PARKED_TRIES.labels("dead").inc()
            return
        outcome = await self._index(connection, read, one_by_one)
        if outcome is Outcome.DEAD:
            again = Trouble("unindexable", "Postgres refuses it still", *_ids(letter))
            await dead_letters.reopen(connection, letter.id, again)
            return
        await dead_letters.settle(connection, letter.id, outcome.value)
        _move(changes, letter.record, Outcome.DEAD, outcome)

    async def _index(self, connection: AsyncConnection, read: Read, one_by_one: bool) -> Outcome:
        outcomes = await self._writer.index(connection, [read], one_by_one=one_by_one)
        (outcome,) = outcomes[read.record.place].elements()
        PARKED_TRIES.labels(outcome.value).inc()
        return outcome


def _ids(letter: DeadLetter) -> tuple[str | None, str | None]:
    return letter.trouble.model_id, letter.trouble.inference_id


def _gave_up(missing: MissingBlob, event: Parked) -> Trouble:
    detail = f"{missing.storage_key} did not come within {event.attempts + 1} tries"
    return Trouble("blob_missing", detail, missing.model_id, missing.inference_id)


def _move(changes: _Changes, record: Record, old: Outcome, new: Outcome) -> None:
    if new is not old:
        counts = changes.setdefault(record.place, Counter())
        counts[old] -= 1
        counts[new] += 1
