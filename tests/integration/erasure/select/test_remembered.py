"""Erased inferences are remembered with the time of the transaction, by the clock that
orders holds and erasures: on Citus the coordinator's."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import rows
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.pending_deletions import list_pending
from tests.integration import erasure_requests
from tests.integration.stored_inferences import NewInference, at, store

INFERENCES = [NewInference("a", at(1)), NewInference("b", at(2))]
UIDS = [inference.uid for inference in INFERENCES]


async def erase(engine: AsyncEngine, model: int) -> datetime:
    """Forget both; the time of the transaction."""
    async with engine.begin() as connection:
        erasure = await erasure_requests.request_erasure(
            connection, model=model, uids=UIDS, scope="inference"
        )
    async with engine.begin() as connection:
        now = (await connection.execute(select(func.now()))).scalar_one()
        done = await list_pending(connection, erasure.id, after=None, limit=10)
        assert await rows.delete_rows(connection, erasure, done, objects=0) == 2
        assert isinstance(now, datetime)
        return now


async def list_remembered(engine: AsyncEngine, model: int) -> dict[tuple[int, UUID], datetime]:
    async with engine.connect() as connection:
        return await tombstones.find_times(connection, [(model, uid) for uid in UIDS])


async def test_it_has_the_time_of_its_transaction_and_of_the_last(engine: AsyncEngine) -> None:
    model = await store(engine, *INFERENCES)
    for _ in range(2):
        now = await erase(engine, model)
        assert await list_remembered(engine, model) == {(model, uid): now for uid in UIDS}
        await store(engine, *INFERENCES)


async def test_it_is_forgotten_after_its_time(engine: AsyncEngine) -> None:
    model = await store(engine, *INFERENCES)
    await erase(engine, model)
    async with engine.begin() as connection:
        assert await tombstones.delete_old(connection, older_than_seconds=3600) == 0
        assert await tombstones.delete_old(connection, older_than_seconds=-3600, limit=1) == 1
        assert await tombstones.delete_old(connection, older_than_seconds=-3600) == 1
        assert await tombstones.list_erased(connection, model, UIDS) == set()
