"""Time that passed while the process was busy is distinguished from the time of a statement."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Select, event, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.query import deadline as deadlines
from inference_store.query.deadline import Deadline, OutOfTime, Overloaded, fetch
from tests.stopped_clock import StoppedClock

_STATEMENT_SECONDS = 0.05


@pytest.fixture
def clock(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoppedClock]:
    """The clock of this process, by which a statement takes 0.05 s, and nothing else any time."""
    stopped = StoppedClock()
    monkeypatch.setattr(deadlines, "time", stopped)

    def pass_time(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        stopped.now += _STATEMENT_SECONDS if "pg_sleep" in text else 0

    event.listen(engine.sync_engine, "before_cursor_execute", pass_time)
    yield stopped
    event.remove(engine.sync_engine, "before_cursor_execute", pass_time)


def _build_sleep(seconds: float) -> Select[tuple[None]]:
    return select(func.pg_sleep_for(timedelta(seconds=seconds)))


async def _sleep_repeatedly(connection: AsyncConnection, deadline: Deadline) -> None:
    while True:
        await fetch(connection, _build_sleep(0), deadline)


async def test_overloaded_if_no_statement_ran(engine: AsyncEngine, clock: StoppedClock) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(0.2)
        clock.now = deadline.at
        with pytest.raises(Overloaded):
            await fetch(connection, _build_sleep(0), deadline)


async def test_overloaded_if_a_statement_had_little_time(
    engine: AsyncEngine, clock: StoppedClock
) -> None:
    async with engine.begin() as connection:
        deadline = Deadline.after(0.2)
        clock.now = deadline.at - _STATEMENT_SECONDS
        with pytest.raises(Overloaded):
            await fetch(connection, _build_sleep(60), deadline)


@pytest.mark.usefixtures("clock")
async def test_out_of_time_if_a_statement_took_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        with pytest.raises(OutOfTime) as raised:
            await fetch(connection, _build_sleep(60), Deadline.after(_STATEMENT_SECONDS))
    assert not isinstance(raised.value, Overloaded)


@pytest.mark.usefixtures("clock")
async def test_out_of_time_if_statements_together_took_the_time(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        # The soft end belongs to the same request: earlier statements count.
        deadline = Deadline.after(60).softly(0.6)
        with pytest.raises(OutOfTime) as raised:
            await _sleep_repeatedly(connection, deadline.early)
    assert not isinstance(raised.value, Overloaded)
