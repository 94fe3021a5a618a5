"""Statements sent by the driver itself still belong to the transaction of the connection."""

from typing import Any

import pytest
from sqlalchemy import bindparam, func, insert, select, text
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.database import cause_of, driver_now
from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import label
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from tests.integration.statements import record_statements

from .cancelling import cancel_later_and_later

_WORD = bindparam("word", type_=TEXT())
_LENGTH = PreparedStatement(select(func.char_length(_WORD).label("length"), _WORD.label("word")))
_NAMED = PreparedStatement(insert(label).values(name=_WORD).returning(label.c.name))
_SLEEP = PreparedStatement(select(func.pg_sleep(bindparam("seconds", type_=INTEGER()))))


async def test_rows_are_read_by_name_and_by_index(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        [row] = await _LENGTH.fetch(connection, {"word": "lamp"})
        assert (row["length"], row[1]) == (4, "lamp")
        assert await _LENGTH.fetch(connection, {}) == [(None, None)]


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


async def test_raises_errors_of_sqlalchemy(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SET statement_timeout = '50ms'"))
        with pytest.raises(DBAPIError) as caught:
            await _SLEEP.fetch(connection, {"seconds": 600})
        assert "statement timeout" in str(cause_of(caught.value))
        assert not caught.value.connection_invalidated
        await connection.rollback()
        assert await _LENGTH.fetch(connection, {"word": "a"}) == [(1, "a")]


async def test_lost_connection_is_invalidated(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        driver_now(connection).terminate()
        with pytest.raises(DBAPIError) as caught:
            await _LENGTH.fetch(connection, {"word": "a"})
        assert caught.value.connection_invalidated


async def test_pool_replaces_a_connection_with_an_open_transaction(
    engine: AsyncEngine,
) -> None:
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


async def test_a_plain_statement_takes_one_round_trip(engine: AsyncEngine) -> None:
    with record_statements(engine) as sent:
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            options: dict[str, Any] = {"plain": True, "parameters": {"word": "a"}}
            assert await fetch(connection, _LENGTH, Deadline.after(300), **options)
    assert len(sent) == 1
