"""Connections that the server has closed are replaced; a transaction that stands idle ends."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine, is_trouble
from tests.polling import until
from tests.servers.postgres import Postgres

_CONNECTIONS = 3
_LOCK = text("SELECT pg_advisory_xact_lock(1)")


async def _pid(connection: AsyncConnection) -> int:
    return int(await connection.scalar(text("SELECT pg_backend_pid()")) or 0)


async def _open_all(engine: AsyncEngine) -> tuple[set[int], list[Any]]:
    """The processes behind every connection of the pool, and the driver's connections."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(engine.connect()) for _ in range(_CONNECTIONS)]
        drivers = [(await each.get_raw_connection()).driver_connection for each in opened]
        return {await _pid(each) for each in opened}, drivers


async def test_connections_that_postgres_closed_are_made_anew(database: str) -> None:
    engine = create_engine(database, pool_size=_CONNECTIONS)
    try:
        before, drivers = await _open_all(engine)
        ended = ", ".join(f"pg_terminate_backend({pid})" for pid in before)
        Postgres(database).ask(f"SELECT ARRAY[{ended}]")

        async def closed() -> bool:
            return all(each.is_closed() for each in drivers)

        await until(closed, bool)
        after, _ = await _open_all(engine)
        assert len(after) == _CONNECTIONS
        assert not after & before
    finally:
        await engine.dispose()


async def test_a_transaction_that_stands_idle_loses_its_locks(database: str) -> None:
    frozen = create_engine(database, pool_size=1, idle_transaction_seconds=1)
    other = create_engine(database, pool_size=1)
    try:
        async with frozen.connect() as connection:
            await connection.execute(_LOCK)
            async with other.begin() as waiting:
                await waiting.execute(_LOCK)
            with pytest.raises(DBAPIError) as caught:
                await connection.execute(text("SELECT 1"))
            assert is_trouble(caught.value)
    finally:
        await frozen.dispose()
        await other.dispose()


async def test_types_are_learned_in_a_moment_on_citus(engine: AsyncEngine) -> None:
    """Of every row of pg_class that the driver joins Citus would ask whether it is a shard."""
    async with engine.connect() as connection:
        shown = await connection.scalar(text("SHOW citus.override_table_visibility"))
        assert shown == "off"
