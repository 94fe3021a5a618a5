"""An input or a response that others point to goes with the last of them, if its owner lost it."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.erasures import Erasure
from inference_store.erasure.holds import kept
from inference_store.erasure.mark import claims, marks
from inference_store.erasure.policies import Scope
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.retention.eraser import Eraser

from .holding import place, release
from .stored import Stored, Storing, ago
from .test_erasures import request

PARTS: dict[Scope, int] = {"input": 0, "response": 1}


async def sharer(storing: Storing, model: int, key: StorageKey, part: Scope, hours: int) -> Stored:
    names = [key.key if place == PARTS[part] else None for place in range(3)]
    return await storing.foreign(model, ago(hours=hours), *names)


async def claimed(engine: AsyncEngine, one: Erasure) -> None:
    """As a crash leaves it while objects are being deleted."""
    async with engine.begin() as connection:
        page = await marks.page(connection, one.id, after=None, limit=10)
        await claims.mark_claimed(connection, one.id, page)


@pytest.mark.parametrize("part", PARTS)
async def test_it_goes_with_the_last_that_shares_it_and_a_hold_on_that_keeps_it(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: Scope
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[PARTS[part]]
    first, last = [await sharer(storing, model, shared, part, hours) for hours in (2, 1)]
    assert await eraser.finish(await request(engine, owner, scope=part)) == "deleted"
    assert await eraser.finish(await request(engine, first)) == "deleted"
    held = await place(engine, model, None, last.uid)
    asked = await request(engine, last)
    assert await eraser.finish(asked) == "partly_held"
    assert storing.objects() == {key.key for key in owner.objects}
    await release(engine, held)
    async with engine.begin() as connection:
        assert await kept.take_up(connection, limit=10) == 1
    assert await eraser.finish(asked) == "deleted"
    assert storing.objects() == {key.key for key in owner.objects} - {shared.key}
    assert await storing.stored() == {owner.uid}


@pytest.mark.parametrize("part", PARTS)
async def test_where_the_owner_and_a_stranger_lose_it_together_it_goes(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: Scope
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[PARTS[part]]
    stranger = await sharer(storing, model, shared, part, 1)
    assert await eraser.finish(await request(engine, owner, stranger, scope=part)) == "deleted"
    assert shared.key not in storing.objects()


@pytest.mark.parametrize("part", PARTS)
async def test_what_the_owner_is_losing_is_taken_unless_a_hold_came_to_keep_it(
    storing: Storing, engine: AsyncEngine, eraser: Eraser, part: Scope
) -> None:
    model = await storing.model()
    for is_held in (True, False):
        (owner,) = await storing.inferences(model, 1, ago(days=1))
        shared = owner.objects[PARTS[part]]
        stranger = await sharer(storing, model, shared, part, 1)
        await claimed(engine, await request(engine, owner, scope=part))
        if is_held:
            await place(engine, model, None, owner.uid)
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
    stranger = await sharer(storing, model, shared, "input", 1)
    assert await eraser.finish(await request(engine, owner, scope="input")) == "deleted"
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == {key.key for key in owner.objects}


async def test_who_shares_is_asked_for_some_at_a_time_and_of_those_that_are_claimed(
    storing: Storing, engine: AsyncEngine
) -> None:
    model = await storing.model()
    those = [
        await storing.foreign(model, ago(days=n), "shared", None, None) for n in range(6, 0, -1)
    ]
    asked = await request(engine, *those[:5])
    async with engine.begin() as connection:
        page = await marks.page(connection, asked.id, after=None, limit=10)
        await claims.mark_claimed(connection, asked.id, page[1:4])
        found = [each async for each in claims.sharing(connection, page[:1], limit=2)]
    assert [len(each) for each in found] == [2, 1]
    assert set.union(*found) == {(model, one.uid) for one in those[1:4]}
