"""An input or a response that others point to goes with the last of them, if its owner lost it."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.mark import claims
from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.erasure.mark.pending_deletions import list_pending
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress.erasure import Erasure
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.retention.eraser import Eraser

from .holding import place_hold, release_hold
from .stored import Stored, Storing, ago
from .test_erasures import request

PARTS: dict[ErasureScope, int] = {"input": 0, "response": 1}


async def store_sharer(
    storing: Storing, model: int, key: StorageKey, part: ErasureScope, hours: int
) -> Stored:
    names = [key.key if position == PARTS[part] else None for position in range(3)]
    return await storing.foreign(model, ago(hours=hours), *names)


async def leave_claims(engine: AsyncEngine, erasure: Erasure) -> None:
    """Leave the claims that a crash leaves while objects are being deleted."""
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await claims.record_claims(connection, erasure.id, page)


@pytest.mark.parametrize("part", PARTS)
async def test_deletes_a_part_with_its_last_sharer_unless_held(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: ErasureScope
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[PARTS[part]]
    first, last = [await store_sharer(storing, model, shared, part, hours) for hours in (2, 1)]
    assert await eraser.finish(await request(engine, owner, scope=part)) == "deleted"
    assert await eraser.finish(await request(engine, first)) == "deleted"
    held = await place_hold(engine, model, None, last.uid)
    erasure = await request(engine, last)
    assert await eraser.finish(erasure) == "partly_held"
    assert storing.objects() == {key.key for key in owner.objects}
    await release_hold(engine, held)
    async with engine.begin() as connection:
        assert await resume_released(connection, limit=10) == 1
    assert await eraser.finish(erasure) == "deleted"
    assert storing.objects() == {key.key for key in owner.objects} - {shared.key}
    assert await storing.stored() == {owner.uid}


@pytest.mark.parametrize("part", PARTS)
async def test_deletes_a_part_that_owner_and_stranger_lose_together(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: ErasureScope
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[PARTS[part]]
    stranger = await store_sharer(storing, model, shared, part, 1)
    assert await eraser.finish(await request(engine, owner, stranger, scope=part)) == "deleted"
    assert shared.key not in storing.objects()


@pytest.mark.parametrize("part", PARTS)
async def test_takes_a_part_that_the_owner_is_losing_unless_it_is_held(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: ErasureScope
) -> None:
    model = await storing.model()
    for is_held in (True, False):
        (owner,) = await storing.inferences(model, 1, ago(days=1))
        shared = owner.objects[PARTS[part]]
        stranger = await store_sharer(storing, model, shared, part, 1)
        await leave_claims(engine, await request(engine, owner, scope=part))
        if is_held:
            await place_hold(engine, model, None, owner.uid)
        assert await eraser.finish(await request(engine, stranger)) == "deleted"
        assert (shared.key in storing.objects()) == is_held


async def test_an_input_that_is_the_owners_answer_too_stays(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[1]
    twice = {"data_storage_key": str(shared)}
    async with engine.begin() as connection:
        await connection.execute(inference.update().values(twice))
    stranger = await store_sharer(storing, model, shared, "input", 1)
    assert await eraser.finish(await request(engine, owner, scope="input")) == "deleted"
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == {key.key for key in owner.objects}


async def test_lists_sharers_of_claimed_inferences_in_batches(
    storing: Storing, engine: AsyncEngine
) -> None:
    model = await storing.model()
    those = [
        await storing.foreign(model, ago(days=n), "shared", None, None) for n in range(6, 0, -1)
    ]
    erasure = await request(engine, *those[:5])
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await claims.record_claims(connection, erasure.id, page[1:4])
        sharers = [batch async for batch in claims.iterate_sharers(connection, page[:1], limit=2)]
    assert [len(batch) for batch in sharers] == [2, 1]
    assert set.union(*sharers) == {(model, stored.uid) for stored in those[1:4]}
