"""Look-ups by id over many partitions, with one plan for all and with plans for groups."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.database import acquire_with
from inference_store.index.tables import erasing, inference, partition_span
from inference_store.inference.errors import NotFound
from inference_store.query import lookup
from inference_store.query.deadline import OutOfTime
from tests.integration.query.held_partition import hold_partition
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.marks import plain_postgres

from .conftest import DAY, Filled, make_days

# The most partitions that one cached plan covers: none of them, and all.
_PLANS = (0, lookup.MOST_PLANNED_ONCE)
_OF_ID_3 = (53, 43, 33, 23, 13, 3)


async def _find(
    connection: AsyncConnection, model: int, name: str, **options: Any
) -> tuple[UUID, ...]:
    return tuple(await lookup.find_by_id(connection, model, name, **{"seconds": 300} | options))


async def test_finds_all_of_an_id_newest_first(days: AsyncConnection, twenty_days: Filled) -> None:
    model, entries = twenty_days.one, twenty_days.inferences["one"]
    strange = [
        UUID(int=0),
        UUID(int=(1 << 128) - 1),
        uuid4(),
        twenty_days.inferences["other"][5].uid,
    ]
    for planned_once in _PLANS:

        async def find(name: str, most: int = 1_000, plan: int = planned_once) -> list[int]:
            uids = await _find(days, model, name, most=most, planned_once=plan)
            return [n for uid in uids for n, entry in enumerate(entries) if entry.uid == uid]

        assert await find("id-3") == [*_OF_ID_3]
        assert await find("id-4") == [54, 44, 34, 24, 14, 7, 4]
        for most in range(1, 8):
            assert await find("id-4", most) == [54, 44, 34, 24, 14, 7, 4][:most]
        assert await find("alias-17") == [17]
        assert await find(f"uid:{entries[5].uid}") == [5]
        for nobody in ("nobody", "", *(f"uid:{uid}" for uid in strange)):
            with pytest.raises(NotFound):
                await find(nobody)
        assert len(await _find(days, twenty_days.models["model-2"], "id-3")) == 1


async def test_hides_marked_and_closed(days: AsyncConnection, twenty_days: Filled) -> None:
    model, entries = twenty_days.one, twenty_days.inferences["one"]
    here = partition_span.c
    for number in (53, 17):
        mark = {"uid": entries[number].uid, "scope": "inference", "erasure": uuid4()}
        await days.execute(insert(erasing).values(model=model, **mark))
    closed = (here.lo <= entries[33].received_at) & (here.hi > entries[33].received_at)
    await days.execute(partition_span.update().where(closed).values(state="dropping"))
    seen = tuple(entries[n].uid for n in (43, 23, 13, 3))
    for planned_once in _PLANS:
        assert await _find(days, model, "id-3", planned_once=planned_once) == seen
        assert await _find(days, model, "id-3", most=1, planned_once=planned_once) == seen[:1]
        for name in ("alias-17", "alias-33", f"uid:{entries[17].uid}", f"uid:{entries[33].uid}"):
            with pytest.raises(NotFound):
                await _find(days, model, name, planned_once=planned_once)


async def test_cached_plan_sees_new_partitions(engine: AsyncEngine) -> None:
    model = await store(engine, *make_days("one"))
    later = NewInference("id-3", at(20 * DAY), model_id="one")
    async with engine.connect() as connection:
        for _ in range(3):
            assert len(await _find(connection, model, "id-3")) == 6
        await connection.rollback()
        await store(engine, later)
        assert (await _find(connection, model, "id-3"))[0] == later.uid


@asynccontextmanager
async def _connect_for_lookup(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection as the routes of one inference do."""
    with acquire_with(lookup.BY_ID):
        connection = await engine.connect()
    async with aclosing(connection):
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


async def test_raises_when_time_runs_out(days_engine: AsyncEngine, twenty_days: Filled) -> None:
    model = twenty_days.one
    for planned_once in _PLANS:
        async with days_engine.connect() as connection:
            async with hold_partition(days_engine, inference, at(3 * DAY)):
                with pytest.raises(OutOfTime):
                    await _find(connection, model, "id-3", seconds=0.5, planned_once=planned_once)
            # The transaction is still usable.
            assert await _find(connection, model, "id-3", planned_once=planned_once)
    # In one round trip:
    async with _connect_for_lookup(days_engine) as connection:
        async with hold_partition(days_engine, inference, at(3 * DAY)):
            with pytest.raises(OutOfTime):
                await _find(connection, model, "id-3", seconds=0.5)
        assert await _find(connection, model, "id-3")


@plain_postgres
async def test_a_look_up_is_planned_once(days_engine: AsyncEngine, twenty_days: Filled) -> None:
    plans = text(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
        " WHERE starts_with(statement, 'SELECT anon')"
    )
    async with _connect_for_lookup(days_engine) as connection:
        for _ in range(3):
            assert await _find(connection, twenty_days.one, "id-3")
        assert (await connection.execute(plans)).one() == (3, 0)
