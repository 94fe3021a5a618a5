"""A scheduled run has ended partitions counted; what a later one deletes outdates their counts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.leader_election import open_election
from inference_store.index.tables import outdated_count, partition_count
from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.query.count import count
from inference_store.query.deadline import Deadline
from inference_store.query.preparation import QueryRequest, prepare
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker
from tests.integration.query.counting.counts import count_usable_partitions
from tests.servers.marks import stored_counts

from .conftest import Retain
from .stored import Storing, ago

pytestmark = stored_counts

Scheduled = Callable[[], Awaitable[None]]


@pytest.fixture
def scheduled(engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings) -> Scheduled:
    """A run by the schedule."""

    async def turn() -> None:
        due = asyncio.Event()
        due.set()
        async with open_election(engine) as election:
            assert await election.take()
            check = LeadershipCheck(election, Heartbeat(), asyncio.Event())
            await RetentionWorker(settings, engine, blobs, check, due).run_turn()

    return turn


@pytest.mark.long
async def test_counts_are_made_and_outdated(
    engine: AsyncEngine, storing: Storing, scheduled: Scheduled, retain: Retain
) -> None:
    model = await storing.model()
    await storing.inferences(model, 5, ago(days=4))
    await storing.inferences(model, 25, ago(days=3))
    # in a partition that does not end while the test runs
    await storing.inferences(model, 1, ago(days=-1))
    await scheduled()
    assert await count_usable_partitions(engine, model) == 2
    async with engine.connect() as connection:
        counts = await connection.execute(select(partition_count.c.inferences))
        assert sorted(counts.scalars()) == [5, 25]
    await storing.keep(model, inference="P3DT12H")
    assert (await retain()).inferences_deleted == 5
    assert await count_usable_partitions(engine, model) == 1
    await storing.keep(model, inference="P1D")
    assert (await retain()).inferences_deleted == 25
    assert await count_usable_partitions(engine, model) == 0
    async with engine.connect() as connection:
        query = (await prepare(connection, model, QueryRequest())).query
        assert await count(connection, query, deadline=Deadline.after(60)) == 1


async def test_rows_that_go_one_by_one_outdate(
    engine: AsyncEngine, storing: Storing, scheduled: Scheduled, retain: Retain
) -> None:
    """Rows go one by one if another model keeps the partition."""
    first, second = await storing.model("first"), await storing.model("second")
    for model in (first, second):
        await storing.inferences(model, 12, ago(days=3))
    await scheduled()
    await storing.keep(first, inference="P1D")
    assert (await retain()).inferences_deleted == 12
    assert (
        await count_usable_partitions(engine, first),
        await count_usable_partitions(engine, second),
    ) == (0, 1)
    async with engine.connect() as connection:
        assert len((await connection.execute(select(outdated_count))).all()) == 1
