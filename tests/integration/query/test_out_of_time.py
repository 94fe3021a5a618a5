"""Pages that end early, or run out of time: together they hold every inference once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from random import Random
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index.tables import inference, metadata_number, prediction
from inference_store.inference.events import uid_floor
from inference_store.query import search
from inference_store.query.cql2 import parse_text
from inference_store.query.deadline import Deadline, OutOfTime, fetch
from inference_store.query.filters.from_conditions import MetadataEntry
from inference_store.query.matching import Query
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.query.properties import OPERATORS
from tests.integration.query.held_partition import (
    PATIENT_SECONDS,
    hold_partition,
    hold_partition_until_late,
)
from tests.integration.stored_inferences import at
from tests.transactions import transact

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


async def _build_query(
    connection: AsyncConnection, models: Sequence[int], question: QueryRequest
) -> Query:
    return (await prepare(connection, models, question)).query


async def _fetch_page(
    connection: AsyncConnection,
    query: Query,
    deadline: Deadline,
    *,
    limit: int = 500,
    scan: int = 1,
    goes_on: bool = False,
) -> tuple[search.TimeSearch, list[UUID]]:
    options: dict[str, Any] = {"limit": limit, "deadline": deadline, "scan": scan}
    options["goes_on"] = goes_on
    page = await search.find_by_time(connection, query, **options)
    return page, page.uids


async def _find(
    engine: AsyncEngine, query: Query, seconds: float
) -> tuple[list[UUID], UUID | None]:
    """Return a page, and how far it searched if time ran out."""
    page, uids = await transact(engine, _fetch_page, query, Deadline.after(seconds))
    return uids, page.searched if page.out_of_time else None


@pytest.mark.parametrize("several", [False, True], ids=["one model", "several models"])
async def test_next_page_continues_where_time_ran_out(
    days_engine: AsyncEngine, twenty_days: Filled, several: bool
) -> None:
    names = ("one", "other", "model-8") if several else ("one",)
    models = [twenty_days.models[name] for name in names]
    for name, (question, table) in QUESTIONS.items():
        for newest_first in (True, False):
            case = (name, newest_first)
            ordered = replace(question, newest_first=newest_first)
            query = await transact(days_engine, _build_query, models, ordered)
            everything, _ = await _find(days_engine, query, 600)
            assert len(everything) >= 2 * DAYS, case
            held_at = at(_HELD_DAY * DAY)
            async with hold_partition_until_late(days_engine, table, held_at) as span:
                uids, searched = await _find(days_engine, query, PATIENT_SECONDS)
            assert searched is not None, case
            reached = searched.int if newest_first else searched.int + 1
            edge = uid_floor(span.hi if newest_first else span.lo).int
            # It never reads the locked partition; without an index it ends somewhere before it.
            before = (reached > edge) == newest_first and (several or name == "no index")
            assert reached == edge or before, case
            assert uids == [uid for uid in everything if (uid.int >= reached) == newest_first]
            assert 0 < len(uids) < len(everything), case
            rest, _ = await _find(days_engine, query.after(searched), 600)
            assert uids + rest == everything, case


async def test_raises_when_nothing_was_read_in_time(
    days_engine: AsyncEngine, twenty_days: Filled
) -> None:
    models = [twenty_days.models[name] for name in ("one", "other")]
    everything = await transact(days_engine, _build_query, models, QueryRequest())
    unindexed = await transact(days_engine, _build_query, models[:1], QueryRequest(ok=True))
    async with hold_partition_until_late(days_engine, inference, at((DAYS - 1) * DAY)):
        for query in (everything, unindexed):
            with pytest.raises(OutOfTime):
                await _find(days_engine, query, PATIENT_SECONDS)
        async with days_engine.connect() as connection:
            deadline = Deadline.after(PATIENT_SECONDS)
            with pytest.raises(OutOfTime):
                await search.count(connection, everything, deadline=deadline)


async def test_a_lock_too_ends_the_time(days_engine: AsyncEngine, twenty_days: Filled) -> None:
    """Here the limit of the statement ends it, as it does in production."""
    query = await transact(days_engine, _build_query, [twenty_days.one], QueryRequest())
    async with hold_partition(days_engine, inference, at((DAYS - 1) * DAY)):
        with pytest.raises(OutOfTime):
            await _find(days_engine, query, 0.5)


async def test_restores_the_statement_timeout(days_engine: AsyncEngine) -> None:
    async with days_engine.connect() as connection:
        before = await connection.scalar(select(func.current_setting("statement_timeout")))
        with pytest.raises(OutOfTime):
            await fetch(connection, select(func.pg_sleep(600)), Deadline.after(0.05))
        after = await connection.scalar(select(func.current_setting("statement_timeout")))
        assert after == before


# Led by one index, several or none; for a missing key; without any condition.
FILTERS = {
    "everything": None,
    "one index": "n >= 6",
    "two indexes": "n <> 7 AND even = TRUE",
    "rare": "rare = 'yes'",
    "no index": "ok = TRUE",
    "missing": "rare IS NULL",
    "prediction": "prediction(label = 'person' AND score BETWEEN 0.2 AND 0.8)",
    "either": "rare = 'yes' OR n BETWEEN 10 AND 12",
    "nothing": "n > 10 AND n < 10",
}


async def _fetch_everything(
    connection: AsyncConnection, query: Query, random: Random, scan: int
) -> tuple[list[UUID], list[UUID]]:
    """Return all uids, page by page as a client follows cursors, and where each page ended."""
    uids: list[UUID] = []
    reached: list[UUID] = []
    while True:
        # Most end at once, some in the middle of a statement.
        seconds = random.choice([0, 0, 0, 0.01 * random.random()])
        deadline, limit = Deadline.after(300).softly(seconds), random.randrange(1, 30)
        far, page_uids = await _fetch_page(
            connection, query, deadline, limit=limit, scan=scan, goes_on=bool(reached)
        )
        uids += page_uids
        if len(page_uids) == limit:
            reached.append(page_uids[-1])
        elif far.out_of_time:
            assert far.searched is not None
            reached.append(far.searched)
        else:
            return uids, reached
        query = query.after(reached[-1])


@pytest.mark.long
@pytest.mark.parametrize("models", [("one",), ("one", "other")], ids=["one model", "two models"])
async def test_pages_together_hold_everything_once(
    days: AsyncConnection, twenty_days: Filled, models: tuple[str, ...]
) -> None:
    numbers = [twenty_days.models[name] for name in models]
    ended_early = 0
    for (name, filter), newest_first in product(FILTERS.items(), (True, False)):
        node = None if filter is None else parse_text(filter)
        question = QueryRequest(filter=node, newest_first=newest_first)
        query = await _build_query(days, numbers, question)
        whole, uids = await _fetch_page(days, query, Deadline.after(300), scan=4_000)
        assert not whole.out_of_time
        assert uids == sorted(uids, reverse=newest_first)
        for scan in (1 if newest_first else 5, 4_000) if len(models) == 1 else (5,):
            case = f"{name} {scan} {len(models)} {newest_first}"
            all_uids, reached = await _fetch_everything(days, query, Random(case), scan)
            assert all_uids == uids, case
            in_order = ((first > second) == newest_first for first, second in pairwise(reached))
            assert all(in_order), case
            # Each page reads a partition at least if an index leads, otherwise one scan.
            at_most = len(uids) if query.is_driven else 3 * DAYS * len(models)
            assert len(reached) <= at_most + DAYS + 1, case
            ended_early += len(reached)
    assert ended_early > 200
