"""The books' own statements, and those over the same rows."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.mark import marks
from inference_store.index import accounting, dead_letters, inferences
from inference_store.index.accounting import ConsumerFenced, Outcome, PartitionId
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import producer_sequence
from inference_store.inference.events import uid_of

NOW = datetime.now(UTC)
PLACES = [PartitionId("default", "events", 0, partition) for partition in range(3)]


@pytest.fixture
async def begun(engine: AsyncEngine) -> AsyncEngine:
    """Three partitions whose books are open at 0."""
    async with engine.begin() as connection:
        for partition_id in PLACES:
            await accounting.open_partition(connection, partition_id, first=0, began="first")
    return engine


async def test_sequences_spread_over_partitions_are_one_account(begun: AsyncEngine) -> None:
    numbers = [n for n in range(1, 30_001) if n not in (5, 20_000)]
    async with begun.begin() as connection:
        for _ in range(2):
            for partition_id in PLACES:
                mine = [n for n in numbers if n % len(PLACES) == partition_id.partition]
                await accounting.add_sequences(
                    connection, partition_id, {"camera": mine, "silent": []}
                )
        rows = await connection.scalar(select(func.count()).select_from(producer_sequence))
        (found,) = await accounting.list_producers(connection)
    # three blocks in each partition, and the block of 30,000 in one
    assert rows == 3 * len(PLACES) + 1
    assert (found.highest, found.arrived, found.missing) == (30_000, 29_998, 2)


async def test_every_producer_of_a_batch_is_heard(begun: AsyncEngine) -> None:
    """Also those whose numbers do not fit into one statement."""
    some = {f"producer-{n:03}": list(range(1, 8)) for n in range(500)}
    async with begun.begin() as connection:
        await accounting.add_sequences(connection, PLACES[0], some)
        heard = {
            each.producer: each.arrived for each in await accounting.list_producers(connection)
        }
    assert heard == dict.fromkeys(some, 7)


async def test_a_held_partition_still_takes_dead_letters(begun: AsyncEngine) -> None:
    letter = (Record(PLACES[0], 0, NOW, None, b""), Trouble("not_json", "why"))
    async with begun.begin() as holder, begun.begin() as other:
        await accounting.lock_at(holder, PLACES[0], 0)
        async with asyncio.timeout(60):
            await dead_letters.add(other, [letter])


async def test_a_held_partition_is_held(begun: AsyncEngine) -> None:
    async with begun.begin() as holder:
        await accounting.lock_at(holder, PLACES[0], 0)
        second = asyncio.create_task(_hold(begun))
        done, _ = await asyncio.wait({second}, timeout=0.3)
        assert not done
        counts = {Outcome.STORED: 1}
        await accounting.move_offsets(holder, PLACES[0], lo=0, hi=1, outcomes=counts, last=None)
    with pytest.raises(ConsumerFenced):
        await second


async def _hold(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.lock_at(connection, PLACES[0], 0)


async def test_more_than_a_statement_has_parameters_can_be_asked_for(begun: AsyncEngine) -> None:
    async with begun.begin() as connection:
        uid = uid_of(NOW, "model", "one")
        keys = ("s3://bucket/data", "s3://bucket/response", None, None)
        await marks.add(connection, uuid4(), [(1, uid, "inference", *keys)])
        wanted = [*(f"s3://bucket/{n}" for n in range(40_000)), *filter(None, keys)]
        assert await marks.claimed(connection, wanted) == set(filter(None, keys))
        asked = [(1, uuid4()) for _ in range(40_000)]
        assert await inferences.stored(connection, asked) == set()
        assert await inferences.stored(connection, []) == set()
