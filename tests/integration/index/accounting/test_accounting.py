"""Statements on the books, and others that lock the same rows."""

import asyncio
from collections import Counter
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.pending_deletions import add_pending, find_claimed
from inference_store.index import accounting, sidecars, unsettled
from inference_store.index.accounting import ConsumerFenced, Outcome, PartitionId
from inference_store.index.tables import producer_sequence
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.events import uid_of
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.transactions import transact

NOW = datetime.now(UTC)
PARTITIONS = [PartitionId("default", "events", 0, partition) for partition in range(3)]


@pytest.fixture
async def engine_with_books(engine: AsyncEngine) -> AsyncEngine:
    """Open the books of three partitions at 0."""
    async with engine.begin() as connection:
        for partition_id in PARTITIONS:
            await accounting.open_partition(connection, partition_id, first=0, began="first")
    return engine


async def test_sequences_over_partitions_are_one_account(engine_with_books: AsyncEngine) -> None:
    numbers = [n for n in range(1, 30_001) if n not in (5, 20_000)]
    async with engine_with_books.begin() as connection:
        for _ in range(2):
            for partition_id in PARTITIONS:
                mine = [n for n in numbers if n % len(PARTITIONS) == partition_id.partition]
                await accounting.add_sequences(
                    connection, partition_id, {"camera": mine, "silent": []}
                )
        rows = await connection.scalar(select(func.count()).select_from(producer_sequence))
        (account,) = await accounting.list_producers(connection)
    # Three blocks in each partition, and the block of 30,000 in one.
    assert rows == 3 * len(PARTITIONS) + 1
    assert (account.highest, account.arrived, account.missing) == (30_000, 29_998, 2)


async def test_adds_every_producer_of_a_batch(engine_with_books: AsyncEngine) -> None:
    """Some of their numbers do not fit into one statement."""
    some = {f"producer-{n:03}": list(range(1, 8)) for n in range(500)}
    async with engine_with_books.begin() as connection:
        await accounting.add_sequences(connection, PARTITIONS[0], some)
        heard = {
            account.producer: account.arrived
            for account in await accounting.list_producers(connection)
        }
    assert heard == dict.fromkeys(some, 7)


async def test_a_held_partition_still_takes_dead_letters(engine_with_books: AsyncEngine) -> None:
    letter = (Record(PARTITIONS[0], 0, NOW, None, b""), Rejection("not_json", "why"))
    async with engine_with_books.begin() as holder, engine_with_books.begin() as other:
        await accounting.lock_at(holder, PARTITIONS[0], 0)
        async with asyncio.timeout(300):
            await unsettled.add_dead(other, [letter])


async def test_a_held_partition_is_held(engine_with_books: AsyncEngine) -> None:
    async with engine_with_books.begin() as holder:
        await accounting.lock_at(holder, PARTITIONS[0], 0)
        second = asyncio.create_task(_lock_partition(engine_with_books))
        await until(lambda: count_lock_waiters(engine_with_books), lambda count: count == 1)
        counts = {Outcome.STORED: 1}
        await accounting.move_offsets(holder, PARTITIONS[0], lo=0, hi=1, outcomes=counts, last=None)
    with pytest.raises(ConsumerFenced):
        await second


async def _lock_partition(engine: AsyncEngine) -> None:
    await transact(engine, accounting.lock_at, PARTITIONS[0], 0)


async def test_takes_more_values_than_a_statement_has_parameters(
    engine_with_books: AsyncEngine,
) -> None:
    async with engine_with_books.begin() as connection:
        uid = uid_of(NOW, "model", "one")
        keys = ("s3://bucket/data", "s3://bucket/response", None, None)
        await add_pending(connection, uuid4(), [(1, uid, "inference", *keys)])
        storage_keys = [*(f"s3://bucket/{n}" for n in range(40_000)), *filter(None, keys)]
        assert await find_claimed(connection, storage_keys) == set(filter(None, keys))
        uids = [(1, uuid4()) for _ in range(40_000)]
        assert await sidecars.stored(connection, uids) == set()
        assert await sidecars.stored(connection, []) == set()


_MOVED = PartitionId("default", "events", 0, 0)


@pytest.fixture
async def engine_with_three(engine: AsyncEngine) -> AsyncEngine:
    """Open the books of a partition in which three offsets are stored."""
    async with engine.begin() as connection:
        await accounting.open_partition(connection, _MOVED, first=0, began="first")
        await accounting.move_offsets(
            connection, _MOVED, lo=0, hi=3, outcomes={Outcome.STORED: 3}, last=None
        )
    return engine


async def are_unchanged(engine: AsyncEngine) -> bool:
    """Check whether the books are as the fixture left them."""
    [account] = await transact(engine, accounting.list_accounts)
    position = await transact(
        engine, accounting.find_position, cluster="default", topic="events", partition=0
    )
    assert account.closes
    return (
        position is not None
        and position.next == 3
        and +Counter(account.counts) == {Outcome.STORED: 3}
    )


async def _move(engine: AsyncEngine, lo: int, hi: int, counts: dict[Outcome, int]) -> None:
    await transact(
        engine, accounting.move_offsets, _MOVED, lo=lo, hi=hi, outcomes=counts, last=None
    )


async def test_it_moves_only_from_where_it_is(engine_with_three: AsyncEngine) -> None:
    for case, lo, hi in (("again", 0, 3), ("behind", 1, 4), ("ahead", 4, 5)):
        with pytest.raises(ConsumerFenced):
            await _move(engine_with_three, lo, hi, {Outcome.STORED: hi - lo})
        assert await are_unchanged(engine_with_three), case


async def test_every_offset_is_accounted_for(engine_with_three: AsyncEngine) -> None:
    wrong: list[dict[Outcome, int]]
    wrong = [{}, {Outcome.STORED: 1}, {Outcome.STORED: 2, Outcome.DEAD: 1}]
    for counts in wrong:
        with pytest.raises(ValueError, match="does not account for"):
            await _move(engine_with_three, 3, 5, counts)
        assert await are_unchanged(engine_with_three), counts
    changes = {_MOVED: {Outcome.STORED: -1, Outcome.DEAD: 2}}
    with pytest.raises(ValueError, match="would not close"):
        await transact(engine_with_three, accounting.change_outcomes, changes)
    assert await are_unchanged(engine_with_three)
