"""While it leads the service chains the audit; what holds it up is seen."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import audit_chain
from inference_store.index.audit import note
from inference_store.platform.metrics import AUDIT_UNLINKED
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.linking import link_audit
from inference_store.retention.watch import set_gauges
from tests.polling import until


async def _write(connection: AsyncConnection) -> None:
    await note(connection, Who("key:ada", None), Action.LINKS_MADE)


async def _count_unlinked(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return (await audit_chain.measure_unlinked(connection))[0]


async def test_links_committed_entries_within_seconds(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        for _ in range(5):
            await _write(connection)
    assert await _count_unlinked(engine) == 5
    async with link_audit(engine):
        await until(lambda: _count_unlinked(engine), lambda count: count == 0, seconds=180)


async def test_an_entry_that_commits_late_gets_a_later_place(engine: AsyncEngine) -> None:
    async with engine.connect() as late:
        await _write(late)
        async with engine.begin() as connection:
            await _write(connection)
            assert await audit_chain.link_entries(connection, limit=10) == 1
        await late.commit()
    async with engine.begin() as connection:
        assert await audit_chain.link_entries(connection, limit=10) == 1
        places = await connection.execute(text("SELECT number FROM audit ORDER BY id"))
        assert list(places.scalars()) == [2, 1]
    async with engine.connect() as connection:
        assert (await audit_chain.verify(connection)).failures == []


async def test_shows_a_stalled_chain(engine: AsyncEngine, settings: RetentionSettings) -> None:
    async with engine.begin() as connection:
        await _write(connection)

    async def read_gauge() -> float:
        return float(AUDIT_UNLINKED._value.get())

    async with engine.begin() as holding:
        await holding.execute(text("SELECT FROM audit_head FOR UPDATE"))
        async with link_audit(engine), set_gauges(engine, settings):
            await until(read_gauge, lambda seconds: seconds > 0, seconds=180)
            await holding.rollback()
            await until(read_gauge, lambda seconds: seconds == 0, seconds=180)
