"""The next offset of a partition moves only from where it is, over offsets with an outcome."""

from collections import Counter

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import ConsumerFenced, Outcome, PartitionId

PARTITION = PartitionId("default", "events", 0, 0)


@pytest.fixture
async def engine_with_books(engine: AsyncEngine) -> AsyncEngine:
    """Open the books of a partition in which three offsets are stored."""
    async with engine.begin() as connection:
        await accounting.open_partition(connection, PARTITION, first=0, began="first")
        await accounting.move_offsets(
            connection, PARTITION, lo=0, hi=3, outcomes={Outcome.STORED: 3}, last=None
        )
    return engine


async def are_unchanged(engine: AsyncEngine) -> bool:
    """Check whether the books are as the fixture left them."""
    async with engine.connect() as connection:
        [account] = await accounting.list_accounts(connection)
        position = await accounting.find_position(
            connection, cluster="default", topic="events", partition=0
        )
    assert account.closes
    return (
        position is not None
        and position.next == 3
        and +Counter(account.counts) == {Outcome.STORED: 3}
    )


async def _move(engine: AsyncEngine, lo: int, hi: int, counts: dict[Outcome, int]) -> None:
    async with engine.begin() as connection:
        await accounting.move_offsets(
            connection, PARTITION, lo=lo, hi=hi, outcomes=counts, last=None
        )


async def test_it_moves_only_from_where_it_is(engine_with_books: AsyncEngine) -> None:
    for case, lo, hi in (("again", 0, 3), ("behind", 1, 4), ("ahead", 4, 5)):
        with pytest.raises(ConsumerFenced):
            await _move(engine_with_books, lo, hi, {Outcome.STORED: hi - lo})
        assert await are_unchanged(engine_with_books), case


async def test_every_offset_is_accounted_for(engine_with_books: AsyncEngine) -> None:
    wrong: list[dict[Outcome, int]]
    wrong = [{}, {Outcome.STORED: 1}, {Outcome.STORED: 2, Outcome.DEAD: 1}]
    for counts in wrong:
        with pytest.raises(ValueError, match="does not account for"):
            await _move(engine_with_books, 3, 5, counts)
        assert await are_unchanged(engine_with_books), counts
    changes = {PARTITION: {Outcome.STORED: -1, Outcome.DEAD: 2}}
    with pytest.raises(ValueError, match="would not close"):
        async with engine_with_books.begin() as connection:
            await accounting.change_outcomes(connection, changes)
    assert await are_unchanged(engine_with_books)
