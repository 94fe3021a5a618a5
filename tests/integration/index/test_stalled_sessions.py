"""Sessions stalled in a COPY are ended; those that work, or belong to others, are kept."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine, driver_of, is_transient
from inference_store.index.stalled_sessions import end_stalled_sessions
from tests.polling import until

_ACTIVE = text(
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND state = 'active'"
)


async def copy_until(engine: AsyncEngine, woken: asyncio.Event) -> None:
    """Send a row of a COPY, and the next one only once woken."""

    async def rows() -> AsyncIterator[tuple[str]]:
        yield ("before",)
        await woken.wait()
        yield ("after",)

    async with engine.begin() as connection:
        await connection.execute(text("CREATE TEMPORARY TABLE copied (value text)"))
        driver = await driver_of(connection)
        await driver.copy_records_to_table("copied", records=rows())


async def sleep_in_postgres(engine: AsyncEngine) -> None:
    """Hold a session in a statement that works for a long time."""
    async with engine.connect() as connection:
        await connection.execute(text("SELECT pg_sleep(600)"))


async def count_ended(database: str, application: str) -> int:
    """End sessions that are stalled at all, as an ingester of this name does; count them."""
    engine = create_engine(database, application=application)
    try:
        async with engine.connect() as connection:
            return await end_stalled_sessions(connection, seconds=0)
    finally:
        await engine.dispose()


async def test_ends_a_session_stalled_in_a_copy(database: str) -> None:
    engine = create_engine(database, application="ingester")
    woken = asyncio.Event()
    copying = asyncio.create_task(copy_until(engine, woken))
    working = asyncio.create_task(sleep_in_postgres(engine))
    try:

        async def count_active() -> int:
            async with engine.connect() as connection:
                return int(await connection.scalar(_ACTIVE, {"name": "ingester"}) or 0)

        await until(count_active, lambda count: count == 3)
        assert await count_ended(database, "another") == 0
        assert await until(lambda: count_ended(database, "ingester"), bool) == 1
        woken.set()
        with pytest.raises(DBAPIError) as caught:
            await copying
        assert is_transient(caught.value)
        assert await count_ended(database, "ingester") == 0
        assert not working.done()
    finally:
        working.cancel()
        await asyncio.gather(copying, working, return_exceptions=True)
        await engine.dispose()
