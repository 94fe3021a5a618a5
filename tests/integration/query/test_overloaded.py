"""Time that passed while the process was busy is distinguished from the time of a statement."""

import time
from datetime import timedelta

import pytest
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.query.deadline import Deadline, OutOfTime, Overloaded, fetch


def _build_sleep(seconds: float) -> Select[tuple[None]]:
    return select(func.pg_sleep_for(timedelta(seconds=seconds)))


def _keep_busy(until: float) -> None:
    while time.monotonic() < until:
        pass


async def _sleep_repeatedly(connection: AsyncConnection, deadline: Deadline) -> None:
    while True:
        await fetch(connection, _build_sleep(0.05), deadline)


async def test_overloaded_if_no_statement_ran(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(0.2)
        _keep_busy(deadline.at)
        with pytest.raises(Overloaded):
            await fetch(connection, _build_sleep(0), deadline)


async def test_overloaded_if_a_statement_had_little_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(4)
        _keep_busy(deadline.at - 1)
        with pytest.raises(Overloaded):
            await fetch(connection, _build_sleep(60), deadline)


async def test_out_of_time_if_a_statement_took_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(OutOfTime) as raised:
            await fetch(connection, _build_sleep(60), Deadline.after(0.5))
    assert not isinstance(raised.value, Overloaded)


async def test_out_of_time_if_statements_together_took_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        # The soft end belongs to the same request: earlier statements count.
        deadline = Deadline.after(60).softly(0.6)
        with pytest.raises(OutOfTime) as raised:
            await _sleep_repeatedly(connection, deadline.early)
    assert not isinstance(raised.value, Overloaded)
