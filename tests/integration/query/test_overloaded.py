"""Time that went by while the process was busy is told from time that a statement took."""

import time
from datetime import timedelta

import pytest
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.query.bounded import Deadline, OutOfTime, Overloaded, fetch


def _slept(seconds: float) -> Select[tuple[None]]:
    return select(func.pg_sleep_for(timedelta(seconds=seconds)))


def _keep_busy(until: float) -> None:
    while time.monotonic() < until:
        pass


async def _sleep_again_and_again(connection: AsyncConnection, deadline: Deadline) -> None:
    while True:
        await fetch(connection, _slept(0.05), deadline)


async def test_no_statement_ran_in_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(0.2)
        _keep_busy(deadline.at)
        with pytest.raises(Overloaded):
            await fetch(connection, _slept(0), deadline)


async def test_a_statement_that_had_little_of_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(4)
        _keep_busy(deadline.at - 1)
        with pytest.raises(Overloaded):
            await fetch(connection, _slept(60), deadline)


async def test_a_statement_that_took_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(OutOfTime) as raised:
            await fetch(connection, _slept(60), Deadline.after(0.5))
    assert not isinstance(raised.value, Overloaded)


async def test_statements_that_took_the_time_together(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        # its soft end is of the same request: what was done before counts
        deadline = Deadline.after(60).softly(0.6)
        with pytest.raises(OutOfTime) as raised:
            await _sleep_again_and_again(connection, deadline.early)
    assert not isinstance(raised.value, Overloaded)
