"""Every test has a migrated database of its own."""

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.mark.parametrize("run", [1, 2])
async def test_each_test_has_its_own_database(database: str, run: int) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("CREATE TABLE mine (run int)")
        await connection.execute("INSERT INTO mine VALUES ($1)", run)
        assert await connection.fetchval("SELECT count(*) FROM mine") == 1
        assert await connection.fetchval("SELECT count(*) FROM alembic_version") == 1
    finally:
        await connection.close()


async def test_engine_uses_that_database(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
