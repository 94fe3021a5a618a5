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


async def test_its_turn_does_not_come_in_time() -> None:
    begun, go_on = Event(), Event()

    def slow() -> Select[tuple[int]]:
        begun.set()
        go_on.wait(60)
        return select(literal(1))

    first = asyncio.create_task(_build(slow, 60))
    await asyncio.to_thread(begun.wait, 60)
    try:
        with pytest.raises(NotBegun):
            await _build(lambda: select(literal(2)), 0.01)
    finally:
        go_on.set()
    await first


async def test_it_takes_too_long_itself() -> None:
    begun, go_on = Event(), Event()

    def slow() -> Select[tuple[int]]:
        begun.set()
        go_on.wait(60)
        return select(literal(1))

    building = asyncio.create_task(_build(slow, 2))
    try:
        await asyncio.to_thread(begun.wait, 60)
        with pytest.raises(TimeoutError) as raised:
            await building
        assert not isinstance(raised.value, NotBegun)
    finally:
        go_on.set()
