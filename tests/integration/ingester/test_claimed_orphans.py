"""An event that comes for an object which is being erased as an orphan waits, and stops nothing."""

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
from tests.integration.stored import Made, indexable, store

NOW = datetime.now(UTC)
RECORD = Record(PartitionId("default", "inference-events", 0, 0), 1, NOW, b"k", b"", ())


async def test_an_event_whose_own_object_is_claimed_waits(engine: AsyncEngine) -> None:
    await store(engine, Made("there", NOW))
    capture = uuid4()
    key = key_of("captures", "model", NOW, capture, "data")
    storage_key = str(StorageKey("bucket", key))
    extras = Extras(capture_id=capture)
    made = Made("late", NOW, keys=(f"bucket/{key}", None, None), extras=extras)
    async with engine.begin() as connection:
        claimed = {"storage_key": storage_key, "erasure": uuid4(), "claimed_at": NOW}
        await connection.execute(insert(erasing_object).values(claimed))
        registration = (await registrations.known(connection, ["model"]))["model"]
        late = indexable(made, registration)
        assert late.shared_keys == ()
        found = await sort_out(connection, [ReadRecord(RECORD, late)])
    assert [blob.storage_key for _, blob in found.missing] == [storage_key]
    assert found.fresh == []
