"""What a dead letter becomes when a redrive parks it."""

from datetime import UTC, datetime

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, dead_letters
from inference_store.index.accounting import PartitionId
from inference_store.index.dead_letters import DeadLetter, Selection
from inference_store.index.records import Record, Trouble

PLACE = PartitionId("default", "events", 0, 0)
RECORD = Record(PLACE, 7, datetime.now(UTC), None, b"{}")
FIRST = Trouble("unknown_model", "not registered")
LATER = Trouble("blob_missing", "it did not come", "model", "one")


async def _letter(connection: AsyncConnection, state: str) -> DeadLetter:
    await accounting.open_partition(connection, PLACE, first=0, began="first")
    await dead_letters.add(connection, [(RECORD, FIRST)])
    letter = await _only(connection)
    await dead_letters.settle(connection, letter.id, state)
    return letter


async def _only(connection: AsyncConnection) -> DeadLetter:
    (found,) = await dead_letters.find(connection, Selection(), limit=10)
    return found


async def test_a_parked_letter_that_gives_up_is_open_again(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        letter = await _letter(connection, "parked")
        await dead_letters.add(connection, [(RECORD, LATER)])
        again = await _only(connection)
    assert (again.id, again.state, again.trouble) == (letter.id, "open", LATER)


@pytest.mark.parametrize("state", ["redrive", "discarded", "stored"])
async def test_any_other_letter_stays_as_it_is(engine: AsyncEngine, state: str) -> None:
    async with engine.begin() as connection:
        await _letter(connection, state)
        await dead_letters.add(connection, [(RECORD, LATER)])
        await dead_letters.settle_parked(connection, RECORD, "expired")
        again = await _only(connection)
    assert (again.state, again.trouble) == (state, FIRST)


async def test_a_parked_letter_is_settled_with_its_event(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await _letter(connection, "parked")
        await dead_letters.settle_parked(connection, RECORD, "stored")
        assert (await _only(connection)).state == "stored"
