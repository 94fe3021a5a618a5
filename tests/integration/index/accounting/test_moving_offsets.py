"""Moving the next offset of a partition: from where it is alone, and over what is accounted for."""

from collections import Counter

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import ConsumerFenced, Outcome, PartitionId

PLACE = PartitionId("default", "events", 0, 0)


@pytest.fixture
async def begun(engine: AsyncEngine) -> AsyncEngine:
    """A partition of which three offsets are stored."""
    async with engine.begin() as connection:
        await accounting.open_partition(connection, PLACE, first=0, began="first")
        await accounting.move_offsets(
            connection, PLACE, lo=0, hi=3, outcomes={Outcome.STORED: 3}, last=None
        )
    return engine


async def unchanged(engine: AsyncEngine) -> bool:
    """Whether the books are as the fixture left them."""
    async with engine.connect() as connection:
        [account] = await accounting.list_accounts(connection)
        found = await accounting.find_position(
            connection, cluster="default", topic="events", partition=0
        )
    assert account.closes
    return found is not None and found.next == 3 and +Counter(account.counts) == {Outcome.STORED: 3}


@pytest.mark.parametrize(("lo", "hi"), [(0, 3), (1, 4), (4, 5)], ids=["again", "behind", "ahead"])
async def test_it_moves_only_from_where_it_is(begun: AsyncEngine, lo: int, hi: int) -> None:
    counts = {Outcome.STORED: hi - lo}
    with pytest.raises(ConsumerFenced):
        async with begun.begin() as connection:
            await accounting.move_offsets(
                connection, PLACE, lo=lo, hi=hi, outcomes=counts, last=None
            )
    assert await unchanged(begun)


@pytest.mark.parametrize("counts", [{}, {Outcome.STORED: 1}, {Outcome.STORED: 2, Outcome.DEAD: 1}])
async def test_every_offset_is_accounted_for(
    begun: AsyncEngine, counts: dict[Outcome, int]
) -> None:
    with pytest.raises(ValueError, match="does not account for"):
        async with begun.begin() as connection:
            await accounting.move_offsets(connection, PLACE, lo=3, hi=5, outcomes=counts, last=None)
    assert await unchanged(begun)


async def test_a_change_of_states_neither_adds_nor_loses_an_offset(begun: AsyncEngine) -> None:
    changes = {PLACE: {Outcome.STORED: -1, Outcome.DEAD: 2}}
    with pytest.raises(ValueError, match="would not close"):
        async with begun.begin() as connection:
            await accounting.change_outcomes(connection, changes)
    assert await unchanged(begun)
