"""Connections that the server has closed are replaced; an idle transaction ends."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine, is_transient
from tests.polling import until
from tests.servers.postgres import Postgres

_CONNECTIONS = 3
_LOCK = text("SELECT pg_advisory_xact_lock(1)")
_IDLE = "idle_in_transaction_session_timeout"


async def _find_pid(connection: AsyncConnection) -> int:
    return int(await connection.scalar(text("SELECT pg_backend_pid()")) or 0)


async def _open_all(engine: AsyncEngine) -> tuple[set[int], list[Any]]:
    """Open every connection of the pool; return their server processes and drivers."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(engine.connect()) for _ in range(_CONNECTIONS)]
        drivers = [
            (await connection.get_raw_connection()).driver_connection for connection in opened
        ]
        return {await _find_pid(connection) for connection in opened}, drivers


async def test_replaces_connections_that_postgres_closed(database: str) -> None:
    engine = create_engine(database, pool_size=_CONNECTIONS)
    try:
        before, drivers = await _open_all(engine)
        ended = ", ".join(f"pg_terminate_backend({pid})" for pid in before)
        Postgres(database).ask(f"SELECT ARRAY[{ended}]")

        async def are_closed() -> bool:
            return all(driver.is_closed() for driver in drivers)

        await until(are_closed, bool)
        after, _ = await _open_all(engine)
        assert len(after) == _CONNECTIONS
        assert not after & before
    finally:
        await engine.dispose()


async def test_idle_transaction_loses_its_locks(database: str) -> None:
    frozen = create_engine(database, pool_size=1, idle_transaction_seconds=600)
    other = create_engine(database, pool_size=1)
    try:
        async with frozen.connect() as connection:
            await connection.execute(_LOCK)
            assert await connection.scalar(text(f"SHOW {_IDLE}")) == "10min"
            # it is idle from now on, however long the test took to come here
            await connection.execute(text(f"SET {_IDLE} = '10ms'"))
            async with other.begin() as waiting:
                await waiting.execute(_LOCK)
            with pytest.raises(DBAPIError) as caught:
                await connection.execute(text("SELECT 1"))
            assert is_transient(caught.value)
    finally:
        await frozen.dispose()
        await other.dispose()


async def test_citus_does_not_check_visibility_of_types(engine: AsyncEngine) -> None:
    """Otherwise Citus checks for every row of pg_class that the driver joins if it is a shard."""
    async with engine.connect() as connection:
        visibility = await connection.scalar(text("SHOW citus.override_table_visibility"))
        assert visibility == "off"
