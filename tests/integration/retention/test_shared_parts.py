"""An input or a response that others point to goes with the last of them, if its owner lost it."""

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import shared_metadata
from inference_store.erasure.mark import claims
from inference_store.erasure.mark.held_deletions import resume_released
from inference_store.erasure.mark.pending_deletions import list_pending
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress.erasure import Erasure
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey, parse_stored

from .stored import METADATA_BLOB, Stored, Storing, ago

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
    storing: Storing, part: ErasureScope
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[PARTS[part]]
    first, last = [await store_sharer(storing, model, shared, part, hours) for hours in (2, 1)]
    await storing.erase(owner, scope=part)
    await storing.erase(first)
    held = await storing.hold(model, None, last.uid)
    erasure = await storing.request(last)
    assert await storing.eraser.finish(erasure) == "partly_held"
    assert storing.objects() == {key.key for key in owner.objects}
    await storing.release(held)
    assert await storing.transact(resume_released, limit=10) == 1
    assert await storing.eraser.finish(erasure) == "deleted"
    assert storing.objects() == {key.key for key in owner.objects} - {shared.key}
    assert await storing.stored() == {owner.uid}


async def test_deletes_a_part_that_owner_and_stranger_lose_together(storing: Storing) -> None:
    model = await storing.model()
    for part in PARTS:
        (owner,) = await storing.inferences(model, 1, ago(days=1))
        shared = owner.objects[PARTS[part]]
        stranger = await store_sharer(storing, model, shared, part, 1)
        await storing.erase(owner, stranger, scope=part)
        assert shared.key not in storing.objects(), part


async def test_takes_a_part_that_the_owner_is_losing_unless_it_is_held(storing: Storing) -> None:
    model = await storing.model()
    for part in PARTS:
        for is_held in (True, False):
            (owner,) = await storing.inferences(model, 1, ago(days=1))
            shared = owner.objects[PARTS[part]]
            stranger = await store_sharer(storing, model, shared, part, 1)
            await leave_claims(storing.engine, await storing.request(owner, scope=part))
            if is_held:
                await storing.hold(model, None, owner.uid)
            await storing.erase(stranger)
            assert (shared.key in storing.objects()) == is_held, part


async def test_an_input_that_is_the_owners_answer_too_stays(storing: Storing) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    shared = owner.objects[1]
    twice = {"data_storage_key": str(shared)}
    await storing.execute(inference.update().values(twice))
    stranger = await store_sharer(storing, model, shared, "input", 1)
    await storing.erase(owner, scope="input")
    await storing.erase(stranger)
    assert storing.objects() == {key.key for key in owner.objects}


async def test_lists_sharers_of_claimed_inferences_in_batches(storing: Storing) -> None:
    model = await storing.model()
    those = [
        await storing.foreign(model, ago(days=n), "shared", None, None) for n in range(6, 0, -1)
    ]
    erasure = await storing.request(*those[:5])
    async with storing.engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await claims.record_claims(connection, erasure.id, page[1:4])
        sharers = [batch async for batch in claims.iterate_sharers(connection, page[:1], limit=2)]
    assert [len(batch) for batch in sharers] == [2, 1]
    assert set.union(*sharers) == {(model, stored.uid) for stored in those[1:4]}


async def find_metadata_key(engine: AsyncEngine, stored: Stored) -> StorageKey:
    query = select(inference.c.metadata_storage_key).where(inference.c.uid == stored.uid)
    async with engine.connect() as connection:
        return parse_stored(await connection.scalar(query) or "")


async def store_shared(storing: Storing, model: int) -> tuple[Stored, Stored, StorageKey]:
    """Store one with a request in its metadata blob, and a stranger that points to that blob."""
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    blob = owner.objects[2]
    stranger = await storing.foreign(model, ago(hours=1), None, None, blob.key)
    storing.blobs.put(blob, METADATA_BLOB, content_type="application/json")
    return owner, stranger, blob


async def test_the_owner_gets_a_copy_and_the_others_keep_the_shared_one(storing: Storing) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await storing.hold(model, None, stranger.uid)
    # a crash after the new key was pointed to, and before anything was written there
    erasure = await storing.request(owner, scope="input")
    async with storing.engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await claims.claim_objects(connection, page)
        await shared_metadata.reserve_keys(connection, page, storing.bucket)
    assert await storing.eraser.finish(erasure) == "deleted"
    own = await find_metadata_key(storing.engine, owner)
    assert own != blob
    assert storing.blobs.get(own, limit=1000) == METADATA_BLOB.partition(b', "request"')[0] + b"}"
    assert await find_metadata_key(storing.engine, stranger) == blob
    assert storing.blobs.get(blob, limit=1000) == METADATA_BLOB
    again = await storing.request(owner, scope="input")
    assert await storing.eraser.finish(again) == "deleted"
    assert (
        await find_metadata_key(storing.engine, owner),
        storing.blobs.get(blob, limit=1000),
    ) == (own, METADATA_BLOB)


async def test_deletes_the_request_with_the_last_inference_that_shares_it(storing: Storing) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await storing.erase(owner, scope="input")
    own = await find_metadata_key(storing.engine, owner)
    await storing.erase(stranger)
    assert storing.objects() == {owner.objects[1].key, own.key}
    await storing.erase(owner)
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert storing.blobs.still_there([blob, own]) == []


async def test_nothing_of_the_request_is_left_if_the_owner_goes_first(storing: Storing) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await storing.erase(owner, scope="input")
    await storing.erase(owner)
    assert storing.objects() == {blob.key}
    await storing.erase(stranger)
    assert storing.objects() == set()
