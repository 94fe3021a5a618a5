"""What is erased is gone from the dictionaries: a redelivery does not bring it back, and a label
that was deleted with its last inference is created again with the next one."""

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import rows
from inference_store.erasure.mark.pending_deletions import list_pending
from inference_store.erasure.progress.state_changes import finish_erasure
from inference_store.index import key_registry
from inference_store.index.tables import inference, label, prediction
from inference_store.objects import Blobs
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import RunningIngester, erase, wait_for_counts
from tests.producer import Capture, capture


async def test_a_redelivery_of_what_was_erased_brings_no_example_of_it_back(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = running
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
    async with engine.connect() as connection:
        entry = (await key_registry.find(connection, row.model, ["who"]))["who"]
    assert [key_type.examples for key_type in entry.types] == [("ward-7",)]


def _make_capture(number: int, *names: str) -> Capture:
    return capture(number, predictions=[{"label": name, "score": 0.5} for name in names])


async def _read_labels(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        rows = await connection.execute(select(label.c.name, label.c.label))
        return {row.name: row.label for row in rows}


async def test_deleted_label_is_created_again(
    running: RunningIngester, engine: AsyncEngine, blobs: Blobs
) -> None:
    """The running ingester has cached its integer."""
    _, producer = running
    await producer.produce(_make_capture(1, "face", "cat"))
    await wait_for_counts(engine, stored=1)
    first = await _read_labels(engine)
    async with engine.begin() as connection:
        row = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        erasure = await erasure_requests.request_erasure(
            connection, model=row.model, uids=[row.uid]
        )
    await erase(engine, blobs, erasure)
    assert await _read_labels(engine) == {}
    await producer.produce(_make_capture(2, "face"), _make_capture(3, "cat"))
    await wait_for_counts(engine, stored=3)
    second = await _read_labels(engine)
    assert second.keys() == {"face", "cat"}
    assert set(second.values()).isdisjoint(first.values())
    async with engine.connect() as connection:
        query = select(func.count()).join(label, label.c.label == prediction.c.label)
        assert await connection.scalar(query.select_from(prediction)) == 2
