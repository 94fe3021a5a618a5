"""The states of a dead letter that a redrive parks."""

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.index import accounting, dead_letters
from inference_store.index.accounting import PartitionId
from inference_store.index.dead_letters import DeadLetter, Selection
from inference_store.index.records import Record, Rejection

PARTITION = PartitionId("default", "events", 0, 0)
RECORD = Record(PARTITION, 7, datetime.now(UTC), None, b"{}")
FIRST = Rejection("unknown_model", "not registered")
LATER = Rejection("blob_missing", "it did not come", "model", "one")


async def _add_letter(connection: AsyncConnection, state: str) -> DeadLetter:
    await accounting.open_partition(connection, PARTITION, first=0, began="first")
    await dead_letters.add(connection, [(RECORD, FIRST)])
    letter = await _find_letter(connection)
    await dead_letters.settle(connection, letter.id, state)
    return letter


async def _find_letter(connection: AsyncConnection) -> DeadLetter:
    (letter,) = await dead_letters.find(connection, Selection(), limit=10)
    return letter


async def test_parked_letter_is_open_again_after_giving_up(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        letter = await _add_letter(connection, "parked")
        await dead_letters.add(connection, [(RECORD, LATER)])
        again = await _find_letter(connection)
    assert (again.id, again.state, again.rejection) == (letter.id, "open", LATER)


async def test_other_letters_stay_unchanged(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        letter = await _add_letter(connection, "open")
        for state in ("redrive", "discarded", "stored"):
            await dead_letters.settle(connection, letter.id, state)
            await dead_letters.add(connection, [(RECORD, LATER)])
            await dead_letters.settle_parked(connection, RECORD, "expired")
            again = await _find_letter(connection)
            assert (again.state, again.rejection) == (state, FIRST)
        # A parked one is settled with its event.
        await dead_letters.settle(connection, letter.id, "parked")
        await dead_letters.settle_parked(connection, RECORD, "stored")
        assert (await _find_letter(connection)).state == "stored"
