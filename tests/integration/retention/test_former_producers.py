"""A scheduled run sums the producers that were not heard for long, and removes their rows."""

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.leader_election import open_election
from inference_store.index import accounting
from inference_store.index.accounting import PartitionId
from inference_store.objects import Blobs
from inference_store.platform.admin import Heartbeat
from inference_store.platform.settings import RetentionSettings
from inference_store.retention.leadership_check import LeadershipCheck
from inference_store.retention.worker import RetentionWorker

_PARTITION = PartitionId("default", "events", 0, 0)


async def test_a_scheduled_run_folds_to_the_last(
    engine: AsyncEngine, blobs: Blobs, settings: RetentionSettings
) -> None:
    async with engine.begin() as connection:
        await accounting.open_partition(connection, _PARTITION, first=0, began="first")
        for hundred in range(12):
            some = {f"{hundred:02}-{n:02}": [2] for n in range(100)}
            await accounting.add_sequences(connection, _PARTITION, some)
        old = "UPDATE producer_sequence SET updated_at = now() - interval '91 days'"
        await connection.execute(text(f"{old} WHERE producer < '11'"))
    due = asyncio.Event()
    due.set()
    async with open_election(engine) as election:
        assert await election.take()
        check = LeadershipCheck(election, Heartbeat(), asyncio.Event())
        await RetentionWorker(settings, engine, blobs, check, due).run_turn()
    async with engine.connect() as connection:
        assert len(await accounting.list_producers(connection)) == 100
        former_producers = await accounting.find_former_producers(connection)
    assert former_producers is not None
    assert (former_producers.producers, former_producers.arrived, former_producers.unexplained) == (
        1100,
        1100,
        1100,
    )
