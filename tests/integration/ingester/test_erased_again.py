"""A redelivery of what was erased writes nothing to the key registry."""

from collections import Counter

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.delete import rows
from inference_store.erasure.mark import marks
from inference_store.index import key_registry
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference
from tests.e2e.faults.books_close import counted
from tests.integration import by_uids
from tests.integration.ingester.conftest import RunningIngester
from tests.polling import until
from tests.producer import capture


async def test_a_redelivery_of_what_was_erased_brings_no_example_of_it_back(
    running: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = running
    telling = capture(1, metadata=[{"key": "who", "type": "string", "value": "patient-4711"}])
    await producer.produce(telling)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 1)
    async with engine.begin() as connection:
        one = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        asked = await by_uids.request(connection, model=one.model, uids=[one.uid])
    async with engine.begin() as connection:
        page = await marks.page(connection, asked.id, after=None, limit=10)
        await rows.forget(connection, asked, page, objects=0)
        assert await erasures.finish(connection, asked, error=None) == "deleted"
    other = capture(2, metadata=[{"key": "who", "type": "string", "value": "ward-7"}])
    await producer.produce(telling, other)
    await until(lambda: counted(engine), lambda found: found.total() == 3)
    assert +(await counted(engine)) == Counter({Outcome.STORED: 2, Outcome.ERASED_AGAIN: 1})
    async with engine.connect() as connection:
        seen = (await key_registry.find(connection, one.model, ["who"]))["who"]
    assert [each.examples for each in seen.types] == [("ward-7",)]
