"""A connection has the settings it was acquired with, and none that another user left."""

import asyncio
from collections.abc import Mapping

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine, driver_now
from inference_store.index.session_settings import NONE, acquire_with, hold, settings_of
from tests.integration.statements import record_statements

_OWN: Mapping[str, str] = {"jit": "on", "work_mem": "1234kB"}
_SETTINGS_QUERY = text("SELECT current_setting('jit'), current_setting('work_mem')")


async def _acquire(engine: AsyncEngine, settings: Mapping[str, str]) -> AsyncConnection:
    with acquire_with(settings):
        connection = await engine.connect()
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


async def _read_settings(connection: AsyncConnection) -> tuple[str, str]:
    jit, work_mem = (await connection.execute(_SETTINGS_QUERY)).one()
    return jit, work_mem


async def test_settings_hold_until_the_connection_is_returned(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
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
    finally:
        await engine.dispose()


async def test_sends_settings_only_if_they_change(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        with record_statements(engine) as sent:
            for settings in (NONE, _OWN, _OWN, _OWN, NONE, NONE):
                own = await _acquire(engine, settings)
                await _read_settings(own)
                await own.close()
        words = [statement.text.partition(" ")[0] for statement in sent]
        assert [word for word in words if word != "SELECT"] == ["SET", "RESET"]
    finally:
        await engine.dispose()


async def test_changes_settings_of_a_held_connection(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        own = await _acquire(engine, _OWN)
        await hold(own, {"jit": "on"})
        assert (await _read_settings(own))[1] != "1234kB"
        await hold(own, NONE)
        untouched = await _read_settings(own)
        await own.close()
        again = await _acquire(engine, _OWN)
        assert await _read_settings(again) == ("on", "1234kB") != untouched
        await again.close()
    finally:
        await engine.dispose()


@pytest.mark.parametrize("first", [NONE, _OWN])
async def test_cancelled_change_leaves_no_settings(database: str, first: Mapping[str, str]) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        async with engine.connect() as connection:
            untouched = await _read_settings(connection)
        for tenths in range(30):
            await (await _acquire(engine, first)).close()
            taking = asyncio.create_task(_acquire(engine, {"work_mem": "4321kB"}))
            await asyncio.wait([taking], timeout=tenths / 10_000)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                await taking.result().close()
            async with engine.connect() as connection:
                assert await _read_settings(connection) == untouched
    finally:
        await engine.dispose()


async def test_replaces_a_lost_connection(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        own = await _acquire(engine, _OWN)
        driver_now(own).terminate()
        await own.close()
        async with engine.connect() as connection:
            assert (await _read_settings(connection))[1] != "1234kB"
        own = await _acquire(engine, _OWN)
        assert await _read_settings(own) == ("on", "1234kB")
        await own.close()
    finally:
        await engine.dispose()
