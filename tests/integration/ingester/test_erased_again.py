"""The redelivery of an erased inference writes nothing to the key registry."""

from collections import Counter

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import rows
from inference_store.erasure.mark.pending_deletions import list_pending
from inference_store.erasure.progress.state_changes import finish_erasure
from inference_store.index import key_registry
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference
from tests.e2e.faults.books_close import counted
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import RunningIngester
from tests.polling import until
from tests.producer import capture


async def test_a_redelivery_of_what_was_erased_brings_no_example_of_it_back(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = running
    telling = capture(1, metadata=[{"key": "who", "type": "string", "value": "patient-4711"}])
    await producer.produce(telling)
    await until(lambda: counted(engine), lambda counts: counts[Outcome.STORED] == 1)
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
    await until(lambda: counted(engine), lambda counts: counts.total() == 3)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 2, Outcome.ERASED_AGAIN: 1})
    async with engine.connect() as connection:
        entry = (await key_registry.find(connection, row.model, ["who"]))["who"]
    assert [key_type.examples for key_type in entry.types] == [("ward-7",)]
