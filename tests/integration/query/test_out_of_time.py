"""A page that runs out of time holds what was found, and the next one continues from there."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference, metadata_number, prediction
from inference_store.inference.events import uid_floor
from inference_store.query.across_models import build_queries, count_across, find_across
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.matching import Query
from inference_store.query.operators import OPERATORS
from inference_store.query.page import find_page
from inference_store.query.preparation import QueryRequest, prepare
from tests.integration.query.held_partition import hold_partition
from tests.integration.query.lock_time import PATIENT_SECONDS, hold_partition_until_late
from tests.integration.stored_inferences import at

from .conftest import DAY, DAYS, Filled

# Far from both ends: more than one group of partitions lies before it in either order.
_HELD_DAY = 9
_AT_LEAST = MetadataEntry("metadata_filter[0]", "n", None, OPERATORS["gte"], 6)
_NUMBERED = QueryRequest(metadata=[_AT_LEAST])
# The conditions, and the table whose partition no statement can read.
QUESTIONS: dict[str, tuple[QueryRequest, Table]] = {
    "one comparison": (_NUMBERED, metadata_number),
    "prediction": (QueryRequest(predicted=True, labels=["person"]), prediction),
    "everything": (QueryRequest(), inference),
    "no index": (QueryRequest(ok=True), inference),
}


async def _build_queries(
    engine: AsyncEngine, models: Sequence[int], question: QueryRequest, *, newest_first: bool = True
) -> tuple[Query, ...]:
    async with engine.connect() as connection:
        several = models if len(models) > 1 else models[0]
        query = (await prepare(connection, several, question)).query
        return await build_queries(connection, query if newest_first else query.in_order(), models)


async def _find(
    engine: AsyncEngine, queries: Sequence[Query], seconds: float
) -> tuple[list[UUID], UUID | None]:
    """Return a page of one model or several, and how far it searched if time ran out."""
    deadline = Deadline.after(seconds)
    async with engine.connect() as connection:
        if len(queries) == 1:
            alone = await find_page(connection, queries[0], limit=500, deadline=deadline, scan=1)
            return alone.uids, alone.searched if alone.out_of_time else None
        page = await find_across(connection, queries, limit=500, deadline=deadline, scan=1)
        return [hit.uid for hit in page.hits], page.searched if page.out_of_time else None


@pytest.mark.parametrize("several", [False, True], ids=["one model", "several models"])
async def test_next_page_continues_where_time_ran_out(
    days_engine: AsyncEngine, twenty_days: Filled, several: bool
) -> None:
    names = ("one", "other", "model-8") if several else ("one",)
    models = [twenty_days.models[name] for name in names]
    for name, (question, table) in QUESTIONS.items():
        for newest_first in (True, False):
            case = (name, newest_first)
            options = {"newest_first": newest_first}
            queries = await _build_queries(days_engine, models, question, **options)
            everything, _ = await _find(days_engine, queries, 600)
            assert len(everything) >= 2 * DAYS, case
            held_at = at(_HELD_DAY * DAY)
            async with hold_partition_until_late(days_engine, table, held_at) as span:
                uids, searched = await _find(days_engine, queries, PATIENT_SECONDS)
            assert searched is not None, case
            reached = searched.int if newest_first else searched.int + 1
            edge = uid_floor(span.hi if newest_first else span.lo).int
            # It never reads the locked partition; without an index it ends somewhere before it.
            before = (reached > edge) == newest_first and (several or name == "no index")
            assert reached == edge or before, case
            assert uids == [uid for uid in everything if (uid.int >= reached) == newest_first]
            assert 0 < len(uids) < len(everything), case
            rest, _ = await _find(days_engine, [query.after(searched) for query in queries], 600)
            assert uids + rest == everything, case


async def test_raises_when_nothing_was_read_in_time(
    days_engine: AsyncEngine, twenty_days: Filled
) -> None:
    models = [twenty_days.models[name] for name in ("one", "other")]
    everything = await _build_queries(days_engine, models, QueryRequest())
    unindexed = await _build_queries(days_engine, models[:1], QueryRequest(ok=True))
    async with hold_partition_until_late(days_engine, inference, at((DAYS - 1) * DAY)):
        for queries in (everything, unindexed):
            with pytest.raises(OutOfTime):
                await _find(days_engine, queries, PATIENT_SECONDS)
        async with days_engine.connect() as connection:
            deadline = Deadline.after(PATIENT_SECONDS)
            with pytest.raises(OutOfTime):
                await count_across(connection, everything, deadline=deadline)


async def test_a_lock_ends_the_time_of_postgres_too(
    days_engine: AsyncEngine, twenty_days: Filled
) -> None:
    """Here the limit of the statement ends it, as it does in production."""
    [query] = await _build_queries(days_engine, [twenty_days.one], QueryRequest())
    async with hold_partition(days_engine, inference, at((DAYS - 1) * DAY)):
        with pytest.raises(OutOfTime):
            await _find(days_engine, [query], 0.5)


async def test_restores_the_statement_timeout(days_engine: AsyncEngine) -> None:
    async with days_engine.connect() as connection:
        before = await connection.scalar(select(func.current_setting("statement_timeout")))
        with pytest.raises(OutOfTime):
            await fetch(connection, select(func.pg_sleep(600)), Deadline.after(0.05))
        after = await connection.scalar(select(func.current_setting("statement_timeout")))
        assert after == before
