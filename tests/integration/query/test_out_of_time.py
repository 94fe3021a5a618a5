"""A page that runs out of time holds what was found, and the next one continues from there."""

from uuid import UUID

import pytest
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference, metadata_number, prediction
from inference_store.inference.events import uid_floor
from inference_store.inference.events.event import Extras
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.matching import Query
from inference_store.query.operators import OPERATORS
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.query.held_partition import hold_partition
from tests.integration.query.lock_time import PATIENT_SECONDS, hold_partition_until_late
from tests.integration.stored_inferences import NewInference, at, store

_DAY = 86_400
_DAYS = 20
# Far from both ends: more than one group of partitions lies before it in either order.
_HELD_DAY = 9
_AT_LEAST = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 6)
# The conditions, and the table whose partition no statement can read.
QUESTIONS: dict[str, tuple[QueryRequest, Table]] = {
    "one comparison": (QueryRequest(metadata=[_AT_LEAST]), metadata_number),
    "prediction": (QueryRequest(predicted=True, labels=["person"]), prediction),
    "everything": (QueryRequest(), inference),
    "no index": (QueryRequest(ok=True), inference),
}


def _make_inferences() -> list[NewInference]:
    """Make three inferences a day, each day a partition."""
    return [
        NewInference(
            f"id-{n}",
            at(n * _DAY / 3),
            [("n", "int", str(n))],
            [("person", 0.5)],
            extras=Extras(ok=True),
        )
        for n in range(3 * _DAYS)
    ]


@pytest.mark.parametrize("newest_first", [True, False], ids=["newest first", "oldest first"])
@pytest.mark.parametrize("name", QUESTIONS)
async def test_next_page_continues_where_time_ran_out(
    engine: AsyncEngine, name: str, newest_first: bool
) -> None:
    question, table = QUESTIONS[name]
    model = await store(engine, *_make_inferences())
    async with engine.connect() as connection:
        query = (await prepare(connection, model, question)).query
    query = query if newest_first else query.in_order()
    everything = await _find_uids(engine, query)
    assert len(everything) >= 3 * _DAYS - 6
    held_at = at(_HELD_DAY * _DAY)
    async with (
        hold_partition_until_late(engine, table, held_at) as span,
        engine.connect() as connection,
    ):
        deadline = Deadline.after(PATIENT_SECONDS)
        page = await find_page(connection, query, limit=100, deadline=deadline, scan=1)
    assert page.out_of_time
    assert page.searched is not None
    reached = page.searched.int if newest_first else page.searched.int + 1
    edge = uid_floor(span.hi if newest_first else span.lo).int
    # It never reads the locked partition; without an index it ends somewhere before it.
    assert reached == edge or (name == "no index" and (reached > edge) == newest_first)
    nearer = [uid for uid in everything if (uid.int >= reached) == newest_first]
    assert page.uids == nearer
    assert 0 < len(nearer) < len(everything)
    rest = await _find_uids(engine, query.after(page.searched))
    assert page.uids + rest == everything


async def _find_uids(engine: AsyncEngine, query: Query) -> list[UUID]:
    async with engine.connect() as connection:
        page = await find_page(connection, query, limit=100, deadline=Deadline.after(600), scan=1)
        assert not page.out_of_time
        return page.uids


async def test_raises_when_nothing_was_read_in_time(engine: AsyncEngine) -> None:
    model = await store(engine, *_make_inferences())
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest(ok=True))).query
        async with hold_partition(engine, inference, at((_DAYS - 1) * _DAY)):
            with pytest.raises(OutOfTime):
                await find_page(connection, query, limit=5, deadline=Deadline.after(0.5), scan=1)


async def test_restores_the_statement_timeout(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        before = await connection.scalar(select(func.current_setting("statement_timeout")))
        with pytest.raises(OutOfTime):
            await fetch(connection, select(func.pg_sleep(30)), Deadline.after(0.05))
        after = await connection.scalar(select(func.current_setting("statement_timeout")))
        assert after == before
