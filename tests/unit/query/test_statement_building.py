"""Waits of a statement that is built beside the event loop, and their length."""

import asyncio
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Dialect, Select, literal, select
from sqlalchemy.dialects.postgresql import asyncpg

from inference_store.query.statement_building import NotBegun, build_statement


class _Connection:
    """The part of a connection that building uses."""

    dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]


async def _build(build: Any, seconds: float) -> Any:
    connection: Any = _Connection()
    return await build_statement(connection, build, beside=True, seconds=seconds)


class _Slow:
    """A statement whose building lasts until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = Event(), Event()

    def __call__(self) -> Select[tuple[int]]:
        self.begun.set()
        self.go_on.wait()
        return select(literal(1))


async def test_its_turn_does_not_come_in_time() -> None:
    slow = _Slow()
    first = asyncio.create_task(_build(slow, 300))
    await asyncio.to_thread(slow.begun.wait)
    try:
        with pytest.raises(NotBegun):
            await _build(lambda: select(literal(2)), 0)
    finally:
        slow.go_on.set()
    await first


async def test_it_takes_too_long_itself() -> None:
    slow = _Slow()
    building = asyncio.create_task(_build(slow, 0))
    await asyncio.sleep(0)  # it is submitted, and its time is over with the next turn of the loop
    slow.begun.wait()  # the loop stands still until then
    try:
        with pytest.raises(TimeoutError) as raised:
            await building
        assert not isinstance(raised.value, NotBegun)
    finally:
        slow.go_on.set()
