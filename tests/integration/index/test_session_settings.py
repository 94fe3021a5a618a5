"""A connection has the settings it was acquired with, and none that another user left."""

from collections.abc import AsyncIterator, Mapping
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine, driver_now
from inference_store.index.session_settings import NONE, acquire_with, hold, settings_of
from tests.integration.statements import record_statements

from .cancelling import cancel_later_and_later

_OWN: Mapping[str, str] = {"jit": "on", "work_mem": "1234kB"}
_SETTINGS_QUERY = text("SELECT current_setting('jit'), current_setting('work_mem')")


@pytest.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    """An engine of one connection, which every user gets in turn."""
    narrow = create_engine(database, pool_size=1)
    yield narrow
    await narrow.dispose()


async def _acquire(engine: AsyncEngine, settings: Mapping[str, str]) -> AsyncConnection:
    with acquire_with(settings):
        connection = await engine.connect()
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


async def _read_settings(connection: AsyncConnection) -> tuple[str, str]:
    jit, work_mem = (await connection.execute(_SETTINGS_QUERY)).one()
    return jit, work_mem


async def test_settings_hold_until_the_connection_is_returned(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        untouched = await _read_settings(connection)
    for settings in (_OWN, {"jit": "on"}, {"work_mem": "1234kB"}):
        own = await _acquire(engine, settings)
        assert settings_of(own) == settings
        expected = tuple(
            settings.get(name, before)
            for name, before in zip(("jit", "work_mem"), untouched, strict=True)
        )
        assert await _read_settings(own) == expected
        await own.close()
    async with engine.connect() as connection:
        assert settings_of(connection) == NONE
        assert await _read_settings(connection) == untouched


async def test_sends_settings_only_if_they_change(engine: AsyncEngine) -> None:
    with record_statements(engine) as sent:
        for settings in (NONE, _OWN, _OWN, _OWN, NONE, NONE):
            own = await _acquire(engine, settings)
            await _read_settings(own)
            await own.close()
    words = [statement.text.partition(" ")[0] for statement in sent]
    assert [word for word in words if word != "SELECT"] == ["SET", "RESET"]


async def test_changes_settings_of_a_held_connection(engine: AsyncEngine) -> None:
    own = await _acquire(engine, _OWN)
    await hold(own, {"jit": "on"})
    assert (await _read_settings(own))[1] != "1234kB"
    await hold(own, NONE)
    untouched = await _read_settings(own)
    await own.close()
    again = await _acquire(engine, _OWN)
    assert await _read_settings(again) == ("on", "1234kB") != untouched
    await again.close()


async def test_cancelled_change_leaves_no_settings(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        untouched = await _read_settings(connection)
    change = partial(_acquire, engine, {"work_mem": "4321kB"})
    for first in (NONE, _OWN):
        await (await _acquire(engine, first)).close()
        async for changing in cancel_later_and_later(change):
            if not changing.cancelled():
                await changing.result().close()
            async with engine.connect() as connection:
                assert await _read_settings(connection) == untouched, first
            await (await _acquire(engine, first)).close()


async def test_replaces_a_lost_connection(engine: AsyncEngine) -> None:
    own = await _acquire(engine, _OWN)
    driver_now(own).terminate()
    await own.close()
    async with engine.connect() as connection:
        assert (await _read_settings(connection))[1] != "1234kB"
    own = await _acquire(engine, _OWN)
    assert await _read_settings(own) == ("on", "1234kB")
    await own.close()
