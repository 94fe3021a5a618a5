"""Look-ups by id over many partitions, with one plan for all and with plans for groups."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.session_settings import NONE, acquire_with, settings_of
from inference_store.index.tables import erasing, inference, partition_span
from inference_store.inference.errors import NotFound
from inference_store.query import lookup
from inference_store.query.deadline import OutOfTime
from inference_store.query.scan_range import find_ranges
from tests.integration.query.held_partition import hold_partition
from tests.integration.statements import record_statements
from tests.integration.stored_inferences import NewInference, at, store
from tests.servers.marks import kept_plans

_DAY = 86_400
both_plans = pytest.mark.parametrize("planned_once", [0, lookup.MOST_PLANNED_ONCE])


def _make_inferences() -> list[NewInference]:
    """Make three inferences a day for twenty days.

    Each of ten ids occurs six times, and each alias once, except one that is also an id.
    """
    return [
        NewInference(
            f"id-{n % 10}", at(n * _DAY / 3), aliases=(f"alias-{n}", *(["id-4"] * (n == 7)))
        )
        for n in range(60)
    ]


def _uids(entries: list[NewInference], *numbers: int) -> tuple[UUID, ...]:
    return tuple(entries[n].uid for n in numbers)


@both_plans
async def test_finds_all_of_an_id_newest_first(engine: AsyncEngine, planned_once: int) -> None:
    entries = _make_inferences()
    model = await store(engine, *entries)
    other = await store(
        engine, NewInference("id-3", at(0), aliases=("alias-17",), model_id="other")
    )
    async with engine.connect() as connection:

        async def find_uids(name: str, most: int = 1_000) -> tuple[UUID, ...]:
            options: dict[str, Any] = {"most": most, "planned_once": planned_once}
            return (await lookup.find_by_id(connection, model, name, **options)).uids

        assert await find_uids("id-3") == _uids(entries, 53, 43, 33, 23, 13, 3)
        assert await find_uids("id-4") == _uids(entries, 54, 44, 34, 24, 14, 7, 4)
        for most in range(1, 8):
            assert await find_uids("id-4", most) == _uids(entries, 54, 44, 34, 24, 14, 7, 4)[:most]
        assert await find_uids("alias-17") == _uids(entries, 17)
        assert await find_uids(f"uid:{entries[5].uid}") == _uids(entries, 5)
        for nobody in ("nobody", "", *_uids_of_nobody()):
            with pytest.raises(NotFound):
                await find_uids(nobody)
        assert len((await lookup.find_by_id(connection, other, "id-3")).uids) == 1


def _uids_of_nobody() -> list[str]:
    return [f"uid:{uid}" for uid in (UUID(int=0), UUID(int=(1 << 128) - 1), uuid4())]


@both_plans
async def test_hides_marked_and_closed(engine: AsyncEngine, planned_once: int) -> None:
    entries = _make_inferences()
    model = await store(engine, *entries)
    here = partition_span.c
    async with engine.begin() as connection:
        for number in (53, 17):
            mark = {"uid": entries[number].uid, "scope": "inference", "erasure": uuid4()}
            await connection.execute(insert(erasing).values(model=model, **mark))
        closed = (here.lo <= entries[33].received_at) & (here.hi > entries[33].received_at)
        await connection.execute(partition_span.update().where(closed).values(state="dropping"))
    async with engine.connect() as connection:
        options: dict[str, Any] = {"planned_once": planned_once}
        result = await lookup.find_by_id(connection, model, "id-3", **options)
        assert result.uids == _uids(entries, 43, 23, 13, 3)
        newest = await lookup.find_by_id(connection, model, "id-3", most=1, **options)
        assert newest.uids == _uids(entries, 43)
        for name in ("alias-17", "alias-33", f"uid:{entries[17].uid}", f"uid:{entries[33].uid}"):
            with pytest.raises(NotFound):
                await lookup.find_by_id(connection, model, name, **options)


@kept_plans
async def test_cached_plan_sees_new_partitions(engine: AsyncEngine) -> None:
    model = await store(engine, *_make_inferences())
    later = NewInference("id-3", at(20 * _DAY))
    async with engine.connect() as connection:
        for _ in range(3):
            assert len((await lookup.find_by_id(connection, model, "id-3")).uids) == 6
        assert await _count_plan_uses(connection) == (3, 0)
        # All other statements are planned for their values.
        mode = await connection.scalar(text("SHOW plan_cache_mode"))
        assert mode == "force_custom_plan"
        await connection.rollback()
        await store(engine, later)
        assert (await lookup.find_by_id(connection, model, "id-3")).newest == later.uid
        assert await _count_plan_uses(connection) == (4, 0)
        await lookup.find_by_id(connection, model, "id-3", planned_once=0)
        generic, custom = await _count_plan_uses(connection)
        assert generic == 4
        assert custom > 0


async def _count_plan_uses(connection: AsyncConnection) -> tuple[int, int]:
    """Return how often a cached plan was used, and how often one was made for the values."""
    used = "sum(generic_plans)::int, sum(custom_plans)::int"
    query = f"SELECT {used} FROM pg_prepared_statements WHERE starts_with(statement, 'SELECT anon')"
    generic, custom = (await connection.execute(text(query))).one()
    return generic, custom


@both_plans
async def test_releases_locks_of_partitions(engine: AsyncEngine, planned_once: int) -> None:
    model = await store(engine, *_make_inferences())
    held_by_us = text(
        "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        " WHERE pid = pg_backend_pid() AND relname LIKE 'inference_p%'"
    )
    async with engine.connect() as connection:
        assert (await lookup.find_by_id(connection, model, "id-3", planned_once=planned_once)).uids
        with pytest.raises(NotFound):
            await lookup.find_by_id(connection, model, "nobody", planned_once=planned_once)
        assert await connection.scalar(held_by_us) == 0


@both_plans
async def test_raises_when_time_runs_out(engine: AsyncEngine, planned_once: int) -> None:
    model = await store(engine, *_make_inferences())
    async with engine.connect() as connection:
        options: dict[str, Any] = {"planned_once": planned_once}
        async with hold_partition(engine, inference, at(3 * _DAY)):
            with pytest.raises(OutOfTime):
                await lookup.find_by_id(connection, model, "id-3", seconds=0.5, **options)
        # The transaction is still usable.
        assert (await lookup.find_by_id(connection, model, "id-3", **options)).uids


@asynccontextmanager
async def _connect_for_lookup(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a connection as the routes of one inference do."""
    with acquire_with(lookup.BY_ID):
        connection = await engine.connect()
    async with aclosing(connection):
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


@kept_plans
async def test_a_look_up_takes_one_round_trip(engine: AsyncEngine) -> None:
    entries = _make_inferences()
    model = await store(engine, *entries)
    async with engine.connect() as connection:
        spans = await find_ranges(connection)
        assert (
            len((await lookup.find_by_id(connection, model, "id-3")).uids) == 6
        )  # it has asked whether this is Citus
    with record_statements(engine) as sent:
        async with _connect_for_lookup(engine) as connection:
            for name in ("id-3", "id-3", "alias-17"):
                assert (await lookup.find_by_id(connection, model, name, spans=spans)).uids
            with pytest.raises(NotFound):
                await lookup.find_by_id(connection, model, "nobody", spans=spans)
            await connection.scalar(text("SELECT 1"))  # the driver reports each a moment later
    others = ("SET enable_", "SELECT 1")
    assert len([statement for statement in sent if not statement.text.startswith(others)]) == 4, (
        sent
    )
    async with _connect_for_lookup(engine) as connection:
        before = await _count_plan_uses(connection)
        assert len((await lookup.find_by_id(connection, model, "id-3", spans=spans)).uids) == 6
        generic, custom = await _count_plan_uses(connection)
        assert (generic, custom) == (before[0] + 1, before[1])


async def test_many_partitions_reset_the_settings_of_the_connection(engine: AsyncEngine) -> None:
    entries = _make_inferences()
    model = await store(engine, *entries)
    async with _connect_for_lookup(engine) as connection:
        assert settings_of(connection) == lookup.BY_ID
        result = await lookup.find_by_id(connection, model, "id-3", planned_once=8)
        assert result.uids == _uids(entries, 53, 43, 33, 23, 13, 3)
        assert settings_of(connection) == NONE
        assert await connection.scalar(text("SHOW enable_seqscan")) == "on"


async def test_raises_when_time_runs_out_in_one_round_trip(engine: AsyncEngine) -> None:
    model = await store(engine, *_make_inferences())
    async with _connect_for_lookup(engine) as connection:
        async with hold_partition(engine, inference, at(3 * _DAY)):
            with pytest.raises(OutOfTime):
                await lookup.find_by_id(connection, model, "id-3", seconds=0.5)
        assert (await lookup.find_by_id(connection, model, "id-3")).uids
