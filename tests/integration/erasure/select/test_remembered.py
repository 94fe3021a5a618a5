"""What was erased is remembered with the time of the transaction that erased it, by the clock that
orders holds and erasures: on Citus the coordinator's."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import rows
from inference_store.erasure.mark import marks, tombstones
from tests.integration import by_uids
from tests.integration.stored import Made, at, store

MADE = [Made("a", at(1)), Made("b", at(2))]
UIDS = [made.uid for made in MADE]


async def erase(engine: AsyncEngine, model: int) -> datetime:
    """Forget both; the time of the transaction."""
    async with engine.begin() as connection:
        asked = await by_uids.request(connection, model=model, uids=UIDS, scope="inference")
    async with engine.begin() as connection:
        now = (await connection.execute(select(func.now()))).scalar_one()
        done = await marks.page(connection, asked.id, after=None, limit=10)
        assert await rows.forget(connection, asked, done, objects=0) == 2
        assert isinstance(now, datetime)
        return now


async def remembered(engine: AsyncEngine, model: int) -> dict[tuple[int, UUID], datetime]:
    async with engine.connect() as connection:
        return await tombstones.times(connection, [(model, uid) for uid in UIDS])


async def test_it_has_the_time_of_its_transaction_and_of_the_last(engine: AsyncEngine) -> None:
    model = await store(engine, *MADE)
    for _ in range(2):
        now = await erase(engine, model)
        assert await remembered(engine, model) == {(model, uid): now for uid in UIDS}
        await store(engine, *MADE)


async def test_it_is_forgotten_after_its_time(engine: AsyncEngine) -> None:
    model = await store(engine, *MADE)
    await erase(engine, model)
    async with engine.begin() as connection:
        assert await tombstones.forget(connection, older_than_seconds=3600) == 0
        assert await tombstones.forget(connection, older_than_seconds=-3600, limit=1) == 1
        assert await tombstones.forget(connection, older_than_seconds=-3600) == 1
        assert await tombstones.erased(connection, model, UIDS) == set()
