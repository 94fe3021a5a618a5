"""What is erased does not come back with a redelivery of its event, neither whole nor in part."""

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import rows
from inference_store.erasure.pending_deletions import enqueue_arrivals, list_pending
from inference_store.erasure.progress import finish_erasure, list_unfinished
from inference_store.index import key_registry
from inference_store.index.tables import erasing, erasure, inference
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Kind, key_of
from inference_store.objects import Blobs
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import erase, wait_for_counts
from tests.producer import START, Capture, Producer, capture
from tests.transactions import fetch, scalar, transact


async def test_a_redelivery_of_what_was_erased_brings_no_example_of_it_back(
    producer: Producer, engine: AsyncEngine
) -> None:
    telling = capture(1, metadata=[{"key": "who", "type": "string", "value": "patient-4711"}])
    await producer.produce(telling)
    await wait_for_counts(engine, stored=1)
    async with engine.begin() as connection:
        row = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        erasure = await erasure_requests.request_erasure(
            connection, model=row.model, uids=[row.uid]
        )
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await rows.delete_rows(connection, erasure, page, objects=0)
        assert await finish_erasure(connection, erasure, error=None) == "deleted"
    other = capture(2, metadata=[{"key": "who", "type": "string", "value": "ward-7"}])
    await producer.produce(telling, other)
    await wait_for_counts(engine, stored=2, erased_again=1)
    entry = (await transact(engine, key_registry.find, row.model, ["who"]))["who"]
    assert [key_type.examples for key_type in entry.types] == [("ward-7",)]


NONE = (None, None, None)


async def test_deletes_erased_parts_that_are_written_again(
    producer: Producer, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    without_input, without_response, whole = (capture(number) for number in (1, 2, 3))
    everything = (without_input, without_response, whole)
    await producer.produce(*everything)
    await wait_for_counts(engine, stored=3)
    async with engine.begin() as connection:
        for item, column in (
            (without_input, "data_deleted_at"),
            (without_response, "response_deleted_at"),
        ):
            here = inference.c.data_storage_key.like(f"%{item.key('data')}")
            await connection.execute(update(inference).where(here).values({column: func.now()}))
    # All three objects are written again, and then the event.
    await producer.produce(*everything)
    await wait_for_counts(engine, stored=3, duplicate=3)
    queued = await transact(engine, list_unfinished, failed=False)
    assert sorted((erasure.cause, erasure.scope, erasure.marked) for erasure in queued) == [
        ("erased_again", "input", 1),
        ("erased_again", "response", 1),
    ]
    await erase(engine, blobs, *queued)
    kinds: list[Kind] = ["data", "response", "metadata"]
    keys = {c.key(k) for c in everything for k in kinds}
    remaining = blobs.still_there([StorageKey(bucket, key) for key in keys])
    gone = {without_input.key("data"), without_response.key("response")}
    assert {key.key for key in remaining} == keys - gone
    assert await scalar(engine, select(func.count()).select_from(inference)) == 3


@dataclass(frozen=True, slots=True)
class OwnCapture(Capture):
    """A capture of our proxy: no other has its keys, so its event does not wait for marks."""

    id: UUID = field(default_factory=uuid4)

    def key(self, kind: Kind) -> str:
        at = START + timedelta(milliseconds=self.number)
        return key_of("captures", self.model_id, at, self.id, kind)


def make_own_capture(number: int) -> OwnCapture:
    id = uuid4()
    return OwnCapture(number, extras={"capture_id": str(id)}, id=id)


async def test_deletes_again_what_was_written_during_the_deletion(
    producer: Producer, engine: AsyncEngine
) -> None:
    """Its row does not say yet that it is deleted. What is only marked is deleted afterwards."""
    claimed, marked = make_own_capture(1), make_own_capture(2)
    await producer.produce(claimed, marked)
    await wait_for_counts(engine, stored=2)
    async with engine.begin() as connection:
        rows = (await connection.execute(select(inference))).all()
        arrivals = [(row.model, row.uid, "input", row.data_storage_key, *NONE) for row in rows]
        await enqueue_arrivals(connection, arrivals, cause="policy")
        here = erasing.c.data_storage_key.like(f"%{claimed.key('data')}")
        await connection.execute(update(erasing).where(here).values(claimed_at=func.now()))
    await producer.produce(claimed, marked)
    await wait_for_counts(engine, stored=2, duplicate=2)
    query = select(erasing.c.scope, erasing.c.data_storage_key)
    query = query.join(erasure, erasure.c.id == erasing.c.erasure)
    again = await fetch(engine, query.where(erasure.c.cause == "erased_again"))
    assert [(row.scope, row.data_storage_key.endswith(claimed.key("data"))) for row in again] == [
        ("input", True)
    ]
