"""Look-ups by id over many partitions, by one plan of all and by plans of some."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.held_settings import NONE, settings_of, taken_with
from inference_store.index.tables import erasing, inference, partition_span
from inference_store.inference.errors import NotFound
from inference_store.query import lookup
from inference_store.query.bounded import OutOfTime
from inference_store.query.scan_range import find_ranges
from tests.integration.query.held_partition import held
from tests.integration.sent import statements_of
from tests.integration.stored import Made, at, store
from tests.servers.marks import kept_plans

_DAY = 86_400
either = pytest.mark.parametrize("planned_once", [0, lookup.MOST_PLANNED_ONCE])


def _made() -> list[Made]:
    """Three a day for twenty days: each of ten ids six times, each alias once, but for one that
    is every tenth inference's own id too."""
    return [
        Made(f"id-{n % 10}", at(n * _DAY / 3), aliases=(f"alias-{n}", *(["id-4"] * (n == 7))))
        for n in range(60)
    ]


def _uids(made: list[Made], *numbers: int) -> tuple[UUID, ...]:
    return tuple(made[n].uid for n in numbers)


@either
async def test_all_of_an_id_newest_first(engine: AsyncEngine, planned_once: int) -> None:
    made = _made()
    model = await store(engine, *made)
    other = await store(engine, Made("id-3", at(0), aliases=("alias-17",), model_id="other"))
    async with engine.connect() as connection:

        async def found(name: str, most: int = 1_000) -> tuple[UUID, ...]:
            how: dict[str, Any] = {"most": most, "planned_once": planned_once}
            return (await lookup.find_by_id(connection, model, name, **how)).uids

        assert await found("id-3") == _uids(made, 53, 43, 33, 23, 13, 3)
        assert await found("id-4") == _uids(made, 54, 44, 34, 24, 14, 7, 4)
        for most in range(1, 8):
            assert await found("id-4", most) == _uids(made, 54, 44, 34, 24, 14, 7, 4)[:most]
        assert await found("alias-17") == _uids(made, 17)
        assert await found(f"uid:{made[5].uid}") == _uids(made, 5)
        for nobody in ("nobody", "", *_uids_of_nobody()):
            with pytest.raises(NotFound):
                await found(nobody)
        assert len((await lookup.find_by_id(connection, other, "id-3")).uids) == 1


def _uids_of_nobody() -> list[str]:
    return [f"uid:{uid}" for uid in (UUID(int=0), UUID(int=(1 << 128) - 1), uuid4())]


@either
async def test_what_is_marked_or_closed_is_not_found(
    engine: AsyncEngine, planned_once: int
) -> None:
    made = _made()
    model = await store(engine, *made)
    here = partition_span.c
    async with engine.begin() as connection:
        for number in (53, 17):
            mark = {"uid": made[number].uid, "scope": "inference", "erasure": uuid4()}
            await connection.execute(insert(erasing).values(model=model, **mark))
        closed = (here.lo <= made[33].received_at) & (here.hi > made[33].received_at)
        await connection.execute(partition_span.update().where(closed).values(state="dropping"))
    async with engine.connect() as connection:
        how: dict[str, Any] = {"planned_once": planned_once}
        found = await lookup.find_by_id(connection, model, "id-3", **how)
        assert found.uids == _uids(made, 43, 23, 13, 3)
        newest = await lookup.find_by_id(connection, model, "id-3", most=1, **how)
        assert newest.uids == _uids(made, 43)
        for name in ("alias-17", "alias-33", f"uid:{made[17].uid}", f"uid:{made[33].uid}"):
            with pytest.raises(NotFound):
                await lookup.find_by_id(connection, model, name, **how)


@kept_plans
async def test_one_plan_is_kept_and_sees_new_partitions(engine: AsyncEngine) -> None:
    model = await store(engine, *_made())
    later = Made("id-3", at(20 * _DAY))
    async with engine.connect() as connection:
        for _ in range(3):
            assert len((await lookup.find_by_id(connection, model, "id-3")).uids) == 6
        assert await _plans_of_look_ups(connection) == (3, 0)
        # for everything else plans are made for the values at hand
        mode = await connection.scalar(text("SHOW plan_cache_mode"))
        assert mode == "force_custom_plan"
        await connection.rollback()
        await store(engine, later)
        assert (await lookup.find_by_id(connection, model, "id-3")).newest == later.uid
        assert await _plans_of_look_ups(connection) == (4, 0)
        await lookup.find_by_id(connection, model, "id-3", planned_once=0)
        generic, custom = await _plans_of_look_ups(connection)
        assert generic == 4
        assert custom > 0


async def _plans_of_look_ups(connection: AsyncConnection) -> tuple[int, int]:
    """How often a kept plan was used, and how often one was made for the values at hand."""
    used = "sum(generic_plans)::int, sum(custom_plans)::int"
    kept = f"SELECT {used} FROM pg_prepared_statements WHERE starts_with(statement, 'SELECT anon')"
    generic, custom = (await connection.execute(text(kept))).one()
    return generic, custom


@either
async def test_it_keeps_no_locks_of_partitions(engine: AsyncEngine, planned_once: int) -> None:
    model = await store(engine, *_made())
    held_by_us = text(
        "SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        " WHERE pid = pg_backend_pid() AND relname LIKE 'inference_p%'"
    )
    async with engine.connect() as connection:
        assert (await lookup.find_by_id(connection, model, "id-3", planned_once=planned_once)).uids
        with pytest.raises(NotFound):
            await lookup.find_by_id(connection, model, "nobody", planned_once=planned_once)
        assert await connection.scalar(held_by_us) == 0


@either
async def test_it_comes_to_an_end(engine: AsyncEngine, planned_once: int) -> None:
    model = await store(engine, *_made())
    async with engine.connect() as connection:
        how: dict[str, Any] = {"planned_once": planned_once}
        async with held(engine, inference, at(3 * _DAY)):
            with pytest.raises(OutOfTime):
                await lookup.find_by_id(connection, model, "id-3", seconds=0.5, **how)
        # the transaction goes on
        assert (await lookup.find_by_id(connection, model, "id-3", **how)).uids


@asynccontextmanager
async def _looking_up(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection as the routes of one inference have it."""
    with taken_with(lookup.BY_ID):
        connection = await engine.connect()
    async with aclosing(connection):
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        yield connection


@kept_plans
async def test_a_look_up_takes_one_round_trip(engine: AsyncEngine) -> None:
    made = _made()
    model = await store(engine, *made)
    async with engine.connect() as connection:
        known = await find_ranges(connection)
        assert (
            len((await lookup.find_by_id(connection, model, "id-3")).uids) == 6
        )  # no Citus: it asked
    with statements_of(engine) as sent:
        async with _looking_up(engine) as connection:
            for name in ("id-3", "id-3", "alias-17"):
                assert (await lookup.find_by_id(connection, model, name, known=known)).uids
            with pytest.raises(NotFound):
                await lookup.find_by_id(connection, model, "nobody", known=known)
            await connection.scalar(text("SELECT 1"))  # the driver tells of each a moment later
    others = ("SET enable_", "SELECT 1")
    assert len([each for each in sent if not each.text.startswith(others)]) == 4, sent
    async with _looking_up(engine) as connection:
        before = await _plans_of_look_ups(connection)
        assert len((await lookup.find_by_id(connection, model, "id-3", known=known)).uids) == 6
        generic, custom = await _plans_of_look_ups(connection)
        assert (generic, custom) == (before[0] + 1, before[1])


async def test_over_many_partitions_it_is_a_connection_like_others(engine: AsyncEngine) -> None:
    made = _made()
    model = await store(engine, *made)
    async with _looking_up(engine) as connection:
        assert settings_of(connection) == lookup.BY_ID
        found = await lookup.find_by_id(connection, model, "id-3", planned_once=8)
        assert found.uids == _uids(made, 53, 43, 33, 23, 13, 3)
        assert settings_of(connection) == NONE
        assert await connection.scalar(text("SHOW enable_seqscan")) == "on"


async def test_in_one_round_trip_it_comes_to_an_end(engine: AsyncEngine) -> None:
    model = await store(engine, *_made())
    async with _looking_up(engine) as connection:
        async with held(engine, inference, at(3 * _DAY)):
            with pytest.raises(OutOfTime):
                await lookup.find_by_id(connection, model, "id-3", seconds=0.5)
        assert (await lookup.find_by_id(connection, model, "id-3")).uids
