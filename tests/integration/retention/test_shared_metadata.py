"""Erasing an input does not change a metadata blob under others that point to it."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import shared_metadata
from inference_store.erasure.mark import claims
from inference_store.erasure.mark.pending_deletions import list_pending
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.retention.eraser import Eraser

from .holding import place_hold
from .stored import METADATA_BLOB, Stored, Storing, ago
from .test_erasures import request


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


async def test_the_owner_gets_a_copy_and_the_others_keep_the_shared_one(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await place_hold(engine, model, None, stranger.uid)
    # a crash after the new key was pointed to, and before anything was written there
    erasure = await request(engine, owner, scope="input")
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await claims.claim_objects(connection, page)
        await shared_metadata.reserve_keys(connection, page, storing.bucket)
    assert await eraser.finish(erasure) == "deleted"
    own = await find_metadata_key(engine, owner)
    assert own != blob
    assert storing.blobs.get(own, limit=1000) == METADATA_BLOB.partition(b', "request"')[0] + b"}"
    assert await find_metadata_key(engine, stranger) == blob
    assert storing.blobs.get(blob, limit=1000) == METADATA_BLOB
    again = await request(engine, owner, scope="input")
    assert await eraser.finish(again) == "deleted"
    assert (await find_metadata_key(engine, owner), storing.blobs.get(blob, limit=1000)) == (
        own,
        METADATA_BLOB,
    )


async def test_deletes_the_request_with_the_last_inference_that_shares_it(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await eraser.finish(await request(engine, owner, scope="input"))
    own = await find_metadata_key(engine, owner)
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == {owner.objects[1].key, own.key}
    assert await eraser.finish(await request(engine, owner)) == "deleted"
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert storing.blobs.still_there([blob, own]) == []


async def test_nothing_of_the_request_is_left_if_the_owner_goes_first(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await store_shared(storing, model)
    await eraser.finish(await request(engine, owner, scope="input"))
    assert await eraser.finish(await request(engine, owner)) == "deleted"
    assert storing.objects() == {blob.key}
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == set()
