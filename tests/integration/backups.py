"""Backups of Postgres made and restored as an operator does it: `pg_dump`, `pg_restore`."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import create_engine
from tests.servers.fixtures import unique
from tests.servers.postgres import Postgres, find_postgres

Backup = Callable[[], bytes]
Restore = Callable[[bytes], Awaitable[AsyncEngine]]


@pytest.fixture
def backup(database: str) -> Backup:
    def dump() -> bytes:
        command = [str(find_postgres() / "pg_dump"), "-Fc", database]
        return subprocess.run(command, capture_output=True, check=True, timeout=600).stdout

    return dump


@pytest.fixture
async def restore(postgres_server: Postgres) -> AsyncIterator[Restore]:
    """Return a function that restores a dump to a new database, and returns an engine on it."""
    async with AsyncExitStack() as stack:

        async def make(dump: bytes) -> AsyncEngine:
            name = unique()
            dsn = postgres_server.create_database(name)
            stack.callback(postgres_server.drop_database, name)
            command = [str(find_postgres() / "pg_restore"), "--exit-on-error", "-d", dsn]
            await asyncio.to_thread(subprocess.run, command, input=dump, check=True, timeout=600)
            engine = create_engine(dsn)
            stack.push_async_callback(engine.dispose)
            return engine

        yield make
