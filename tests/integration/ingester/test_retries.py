"""Retries of parked events and redriven dead letters, in this process."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.pending_deletions import add_pending
from inference_store.index import accounting, registrations, unsettled
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.dictionary import Dictionary
from inference_store.index.registrations import Details
from inference_store.index.tables import unsettled_event
from inference_store.index.unsettled import Record, Rejection, Schedule, Selection, UnsettledEvent
from inference_store.index.writing import Indexable
from inference_store.inference.events import InferenceEvent, StorageKey
from inference_store.inference.events.event import uid_of
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Predictions
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.ingester.limit import Backoff
from inference_store.ingester.reader import Reader, Retries
from inference_store.ingester.writer import Writer
from inference_store.objects import Blobs
from inference_store.platform.settings import IngesterSettings
from tests.transactions import Database

NOW = datetime.now(UTC)
PARTITION = PartitionId("default", "events", 0, 0)
SCHEDULE = Schedule(timedelta(), timedelta(), give_up=timedelta(hours=1))
RESPONSE = StorageKey("bucket", "answer")
WAITING = Rejection("blob_missing", "it is not there yet", "model", "0")


class PreparedReader(Reader):
    """A reader with prepared results."""

    def __init__(self, registration: registrations.Registration) -> None:
        self._registration = registration
        self.missing = False

    async def read(self, records: Sequence[Record], _: object = None) -> list[ReadRecord]:
        return [ReadRecord(record, self._make_result(str(record.offset))) for record in records]

    def _make_result(self, id: str) -> Indexable | MissingBlob:
        inference_event = InferenceEvent(
            uid=uid_of(NOW, "model", id),
            model_id="model",
            inference_id=id,
            received_at=NOW,
            response=RESPONSE,
        )
        item = Indexable(
            inference_event, self._registration, read_metadata(b"[]"), Predictions((), (), None)
        )
        return MissingBlob(str(RESPONSE), "model", id, item=item) if self.missing else item


class Trial(Database):
    """Events of one partition in the books, and the retries of them."""

    def __init__(self, engine: AsyncEngine, database: str) -> None:
        self.engine = engine
        self._settings = IngesterSettings.model_validate({"postgres_dsn": database})

    async def begin(self) -> "Trial":
        async with self.engine.begin() as connection:
            registration, _ = await registrations.put(connection, "model", Details())
            await accounting.open_partition(connection, PARTITION, first=0, began="first")
        stop = asyncio.Event()
        self.reader = PreparedReader(registration)
        self.retries = Retries(
            self._settings,
            self.engine,
            self.reader,
            Writer(
                self.engine,
                Dictionary(self.engine),
                SCHEDULE,
                Blobs(self._settings),
                partition_target=1000,
            ),
            schedule=SCHEDULE,
            backoff=Backoff(stop, first_seconds=0.1),
            stop=stop,
        )
        return self

    async def park(self, many: int = 1) -> None:
        records = [Record(PARTITION, n, NOW, None, b"{}") for n in range(many)]
        async with self.engine.begin() as connection:
            await unsettled.park(
                connection, [(r, WAITING, str(RESPONSE)) for r in records], SCHEDULE
            )
            counts = {Outcome.PARKED: many}
            await accounting.move_offsets(
                connection, PARTITION, lo=0, hi=many, outcomes=counts, last=None
            )

    async def bury(self) -> None:
        record, why = Record(PARTITION, 0, NOW, None, b"{}"), Rejection("unknown_model", "why")
        async with self.engine.begin() as connection:
            await unsettled.add_dead(connection, [(record, why)])
            await unsettled.retry(connection, Selection())
            counts = {Outcome.DEAD: 1}
            await accounting.move_offsets(
                connection, PARTITION, lo=0, hi=1, outcomes=counts, last=None
            )

    async def claim(self) -> UUID:
        """Claim the response of the events, as an eraser that deletes it."""
        erasure = uuid4()
        arrival = (1, uid_of(NOW, "model", "x"), "inference", None, str(RESPONSE), None, None)
        await self.transact(add_pending, erasure, [arrival])
        return erasure

    async def age(self) -> None:
        long_ago = func.now() - timedelta(days=1)
        await self.execute(update(unsettled_event).values(created_at=long_ago))

    async def waiting(self) -> list[UnsettledEvent]:
        return await self.transact(unsettled.find_due, limit=1000)

    async def letters(self) -> list[UnsettledEvent]:
        return await self.transact(unsettled.find, Selection(kind="dead letter"), limit=10)

    async def outcomes(self) -> Counter[Outcome]:
        (account,) = await self.transact(accounting.list_accounts)
        assert account.closes
        return +Counter(account.counts)


@pytest.fixture
async def trial(engine: AsyncEngine, database: str) -> Trial:
    return await Trial(engine, database).begin()


@pytest.mark.parametrize("missing", [True, False], ids=["blob missing", "claimed by an eraser"])
async def test_event_parked_again_keeps_its_row_until_it_gives_up(
    trial: Trial, missing: bool
) -> None:
    trial.reader.missing = missing
    if not missing:
        await trial.claim()
    await trial.park()
    (before,) = await trial.waiting()
    for _ in range(2):
        await trial.retries.once()
    (after,) = await trial.waiting()
    assert (after.id, after.created_at, after.attempts) == (before.id, before.created_at, 2)
    assert await trial.outcomes() == {Outcome.PARKED: 1}
    await trial.age()
    await trial.retries.once()
    assert await trial.waiting() == []
    (letter,) = await trial.letters()
    assert (letter.state, letter.rejection.reason) == ("open", "blob_missing")
    assert "within 3 tries" in letter.rejection.detail
    assert await trial.outcomes() == {Outcome.DEAD: 1}


async def test_parked_redriven_letter_is_settled_when_stored(trial: Trial) -> None:
    await trial.bury()
    trial.reader.missing = True
    await trial.retries.once()
    assert [letter.state for letter in await trial.letters()] == ["parked"]
    assert await trial.outcomes() == {Outcome.PARKED: 1}
    trial.reader.missing = False
    await trial.retries.once()
    assert [letter.state for letter in await trial.letters()] == ["stored"]
    assert await trial.outcomes() == {Outcome.STORED: 1}


async def test_parked_redriven_letter_is_open_again_after_giving_up(trial: Trial) -> None:
    await trial.bury()
    trial.reader.missing = True
    await trial.retries.once()
    await trial.age()
    await trial.retries.once()
    assert await trial.waiting() == []
    assert [letter.state for letter in await trial.letters()] == ["open"]
    assert await trial.outcomes() == {Outcome.DEAD: 1}
    assert await trial.transact(unsettled.retry, Selection()) == 1
