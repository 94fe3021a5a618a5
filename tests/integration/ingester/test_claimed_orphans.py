"""An event waits if its object is being erased as an orphan, without stopping anything."""

from datetime import UTC, datetime
from uuid import uuid4

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import registrations
from inference_store.index.accounting import PartitionId
from inference_store.index.records import Record
from inference_store.index.tables import erasing_object
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.layout import key_of
from inference_store.ingester.arrivals import sort_out
from inference_store.ingester.batch import ReadRecord
from tests.integration.stored_inferences import NewInference, make_indexable, store

NOW = datetime.now(UTC)
RECORD = Record(PartitionId("default", "inference-events", 0, 0), 1, NOW, b"k", b"", ())


async def test_event_waits_if_its_own_object_is_claimed(engine: AsyncEngine) -> None:
    await store(engine, NewInference("there", NOW))
    capture = uuid4()
    key = key_of("captures", "model", NOW, capture, "data")
    storage_key = str(StorageKey("bucket", key))
    extras = Extras(capture_id=capture)
    inference = NewInference("late", NOW, keys=(f"bucket/{key}", None, None), extras=extras)
    async with engine.begin() as connection:
        claimed = {"storage_key": storage_key, "erasure": uuid4(), "claimed_at": NOW}
        await connection.execute(insert(erasing_object).values(claimed))
        registration = (await registrations.find_by_ids(connection, ["model"]))["model"]
        late = make_indexable(inference, registration)
        assert late.shared_keys == ()
        arrivals = await sort_out(connection, [ReadRecord(RECORD, late)])
    assert [blob.storage_key for _, blob in arrivals.missing] == [storage_key]
    assert arrivals.fresh == []
