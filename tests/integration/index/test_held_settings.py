"""A connection has the settings that it was taken with, and nobody gets what another left."""

import asyncio
from collections.abc import Mapping

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import create_engine, driver_now
from inference_store.index.held_settings import NONE, hold, settings_of, taken_with
from tests.integration.sent import statements_of

_OWN: Mapping[str, str] = {"jit": "on", "work_mem": "1234kB"}
_SHOWN = text("SELECT current_setting('jit'), current_setting('work_mem')")


async def _taken(engine: AsyncEngine, settings: Mapping[str, str]) -> AsyncConnection:
    with taken_with(settings):
        connection = await engine.connect()
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


async def _shown(connection: AsyncConnection) -> tuple[str, str]:
    jit, work_mem = (await connection.execute(_SHOWN)).one()
    return jit, work_mem


async def test_settings_hold_until_the_connection_is_given_back(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        async with engine.connect() as connection:
            untouched = await _shown(connection)
        for settings in (_OWN, {"jit": "on"}, {"work_mem": "1234kB"}):
            own = await _taken(engine, settings)
            assert settings_of(own) == settings
            expected = tuple(
                settings.get(name, before)
                for name, before in zip(("jit", "work_mem"), untouched, strict=True)
            )
            assert await _shown(own) == expected
            await own.close()
        async with engine.connect() as connection:
            assert settings_of(connection) == NONE
            assert await _shown(connection) == untouched
    finally:
        await engine.dispose()


async def test_they_are_sent_only_where_they_change(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        with statements_of(engine) as sent:
            for settings in (NONE, _OWN, _OWN, _OWN, NONE, NONE):
                own = await _taken(engine, settings)
                await _shown(own)
                await own.close()
        words = [each.text.partition(" ")[0] for each in sent]
        assert [word for word in words if word != "SELECT"] == ["SET", "RESET"]
    finally:
        await engine.dispose()


async def test_other_settings_while_it_is_held(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        own = await _taken(engine, _OWN)
        await hold(own, {"jit": "on"})
        assert (await _shown(own))[1] != "1234kB"
        await hold(own, NONE)
        untouched = await _shown(own)
        await own.close()
        again = await _taken(engine, _OWN)
        assert await _shown(again) == ("on", "1234kB") != untouched
        await again.close()
    finally:
        await engine.dispose()


@pytest.mark.parametrize("first", [NONE, _OWN])
async def test_a_change_that_is_cancelled_at_any_moment_leaves_nothing(
    database: str, first: Mapping[str, str]
) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        async with engine.connect() as connection:
            untouched = await _shown(connection)
        for tenths in range(30):
            await (await _taken(engine, first)).close()
            taking = asyncio.create_task(_taken(engine, {"work_mem": "4321kB"}))
            await asyncio.wait([taking], timeout=tenths / 10_000)
            taking.cancel()
            await asyncio.wait([taking])
            if not taking.cancelled():
                await taking.result().close()
            async with engine.connect() as connection:
                assert await _shown(connection) == untouched
    finally:
        await engine.dispose()


async def test_a_connection_that_is_lost_is_replaced(database: str) -> None:
    engine = create_engine(database, pool_size=1)
    try:
        own = await _taken(engine, _OWN)
        driver_now(own).terminate()
        await own.close()
        async with engine.connect() as connection:
            assert (await _shown(connection))[1] != "1234kB"
        own = await _taken(engine, _OWN)
        assert await _shown(own) == ("on", "1234kB")
        await own.close()
    finally:
        await engine.dispose()
