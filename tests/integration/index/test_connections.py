"""Connections: ended when they stall, and without what another left."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest
from sqlalchemy import bindparam, func, insert, select, text
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import (
    NONE,
    acquire_with,
    create_engine,
    driver_now,
    end_stalled_sessions,
    is_transient,
    settings_of,
)
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import label
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from tests.polling import until
from tests.transactions import opened

T = TypeVar("T")


async def cancel_later_and_later(
    start: Callable[[], Coroutine[Any, Any, T]],
) -> AsyncIterator["asyncio.Task[T]"]:
    """Yield the task, each time cancelled after more turns of the loop, until it ends by itself."""
    for step in count():
        task = asyncio.create_task(start())
        for _ in range(int(1.2**step)):
            await asyncio.sleep(0)
        is_over = task.done()
        task.cancel()
        await asyncio.wait([task])
        yield task
        if is_over:
            return


_LOCK = text("SELECT pg_advisory_xact_lock(1)")
_IDLE = "idle_in_transaction_session_timeout"


async def test_idle_transaction_loses_its_locks(database: str) -> None:
    async with (
        opened(database, pool_size=1, idle_transaction_seconds=600) as frozen,
        opened(database, pool_size=1) as other,
        frozen.connect() as connection,
    ):
        await connection.execute(_LOCK)
        assert await connection.scalar(text(f"SHOW {_IDLE}")) == "10min"
        # it is idle from now on, however long the test took to come here
        await connection.execute(text(f"SET {_IDLE} = '10ms'"))
        async with other.begin() as waiting:
            await waiting.execute(_LOCK)
        with pytest.raises(DBAPIError) as caught:
            await connection.execute(text("SELECT 1"))
        assert is_transient(caught.value)


async def test_citus_does_not_check_visibility_of_types(engine: AsyncEngine) -> None:
    """Otherwise Citus checks for every row of pg_class that the driver joins if it is a shard."""
    async with engine.connect() as connection:
        visibility = await connection.scalar(text("SHOW citus.override_table_visibility"))
        assert visibility == "off"


Stall = Callable[[AsyncEngine, asyncio.Event], Coroutine[None, None, None]]
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
        driver = driver_now(connection)
        await driver.copy_records_to_table("copied", records=rows())


async def prepare_until(engine: AsyncEngine, woken: asyncio.Event) -> None:
    """Prepare a statement, and execute it only once woken."""
    async with engine.begin() as connection:
        await driver_now(connection).prepare("SELECT 1")
        await woken.wait()
        await connection.execute(text("SELECT 1"))


async def sleep_in_postgres(engine: AsyncEngine) -> None:
    """Hold a session in a statement that works for a long time."""
    async with engine.connect() as connection:
        await connection.execute(text("SELECT pg_sleep(600)"))


async def count_ended(database: str, application: str) -> int:
    """End sessions that are stalled at all, as an ingester of this name does; count them."""
    async with opened(database, application=application) as engine, engine.connect() as connection:
        return await end_stalled_sessions(connection, seconds=0)


@pytest.mark.parametrize("stall", [copy_until, prepare_until])
async def test_ends_a_session_whose_client_is_stuck(stall: Stall, database: str) -> None:
    engine = create_engine(database, application="ingester")
    woken = asyncio.Event()
    stalled = asyncio.create_task(stall(engine, woken))
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
            await stalled
        assert is_transient(caught.value)
        assert await count_ended(database, "ingester") == 0
        assert not working.done()
    finally:
        working.cancel()
        await asyncio.gather(stalled, working, return_exceptions=True)
        await engine.dispose()


_WORD = bindparam("word", type_=TEXT())
_LENGTH = PreparedStatement(select(func.char_length(_WORD).label("length"), _WORD.label("word")))
_NAMED = PreparedStatement(insert(label).values(name=_WORD).returning(label.c.name))
_SLEEP = PreparedStatement(select(func.pg_sleep(bindparam("seconds", type_=INTEGER()))))


async def test_the_first_statement_of_a_transaction_is_in_it(engine: AsyncEngine) -> None:
    async with engine.connect() as connection, connection.begin() as transaction:
        assert await _NAMED.fetch(connection, {"word": "lamp"})
        await transaction.rollback()
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        assert not (await connection.execute(select(label.c.name))).all()
        await _NAMED.fetch(connection, {"word": "lamp"})
        assert not driver_now(connection).is_in_transaction()
    async with engine.connect() as connection:
        assert (await connection.execute(select(label.c.name))).scalars().all() == ["lamp"]


async def test_pool_replaces_a_connection_amid_a_transaction(engine: AsyncEngine) -> None:
    async with engine.connect() as first, engine.connect() as second:
        stays = driver_now(first)
        await first.execution_options(isolation_level="AUTOCOMMIT")
        await second.execution_options(isolation_level="AUTOCOMMIT")
        interrupted = driver_now(second)
        await interrupted.execute("BEGIN READ ONLY")
    assert interrupted.is_closed()
    async with engine.connect() as first, engine.connect() as second:
        for connection in (first, second):
            assert await _LENGTH.fetch(connection, {"word": "a"}) == [(1, "a")]
        assert stays in {driver_now(first), driver_now(second)}


async def test_cancelled_statement_leaves_no_settings(engine: AsyncEngine) -> None:
    state = text(
        "SELECT current_setting('transaction_read_only'), current_setting('jit'),"
        " current_setting('statement_timeout')"
    )
    async with engine.connect() as connection:
        untouched = (await connection.execute(state)).one()

    async def read() -> None:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await fetch(connection, select(1), Deadline.after(300), settings={"jit": "on"})

    async for _ in cancel_later_and_later(read):
        async with engine.connect() as connection:
            assert (await connection.execute(state)).one() == untouched


async def test_a_plain_statement_ends_in_time(engine: AsyncEngine) -> None:
    """Alone, or within a transaction."""
    running = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'active' AND query LIKE 'SELECT pg_sleep%'"
    )
    options: dict[str, Any] = {"plain": True, "parameters": {"seconds": 600}}
    async with engine.connect() as connection:
        with pytest.raises(OutOfTime):
            await fetch(connection, _SLEEP, Deadline.after(0.1), **options)
        assert await _LENGTH.fetch(connection, {"word": "a"}) == [(1, "a")]
        await connection.rollback()
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(OutOfTime):
            await fetch(connection, _SLEEP, Deadline.after(0.1), **options)
        assert await _LENGTH.fetch(connection, {"word": "a"}) == [(1, "a")]
        assert await connection.scalar(running) == 0
        # The limit of Postgres has the same effect.
        await connection.execute(text("SET statement_timeout = '50ms'"))
        with pytest.raises(OutOfTime):
            await fetch(connection, _SLEEP, Deadline.after(300), **options)


_OWN: Mapping[str, str] = {"jit": "on", "work_mem": "1234kB"}
_SETTINGS_QUERY = text("SELECT current_setting('jit'), current_setting('work_mem')")


@pytest.fixture
async def narrow(database: str) -> AsyncIterator[AsyncEngine]:
    """An narrow of one connection, which every user gets in turn."""
    async with opened(database, pool_size=1) as narrow:
        yield narrow


async def _acquire(narrow: AsyncEngine, settings: Mapping[str, str]) -> AsyncConnection:
    with acquire_with(settings):
        connection = await narrow.connect()
    await connection.execution_options(isolation_level="AUTOCOMMIT")
    return connection


async def _read_settings(connection: AsyncConnection) -> tuple[str, str]:
    jit, work_mem = (await connection.execute(_SETTINGS_QUERY)).one()
    return jit, work_mem


async def test_settings_hold_until_the_connection_is_returned(narrow: AsyncEngine) -> None:
    async with narrow.connect() as connection:
        untouched = await _read_settings(connection)
    for settings in (_OWN, {"jit": "on"}, {"work_mem": "1234kB"}):
        own = await _acquire(narrow, settings)
        assert settings_of(own) == settings
        expected = tuple(
            settings.get(name, before)
            for name, before in zip(("jit", "work_mem"), untouched, strict=True)
        )
        assert await _read_settings(own) == expected
        await own.close()
    async with narrow.connect() as connection:
        assert settings_of(connection) == NONE
        assert await _read_settings(connection) == untouched


async def test_cancelled_change_leaves_no_settings(narrow: AsyncEngine) -> None:
    async with narrow.connect() as connection:
        untouched = await _read_settings(connection)
    change = partial(_acquire, narrow, {"work_mem": "4321kB"})
    for first in (NONE, _OWN):
        await (await _acquire(narrow, first)).close()
        async for changing in cancel_later_and_later(change):
            if not changing.cancelled():
                await changing.result().close()
            async with narrow.connect() as connection:
                assert await _read_settings(connection) == untouched, first
            await (await _acquire(narrow, first)).close()
