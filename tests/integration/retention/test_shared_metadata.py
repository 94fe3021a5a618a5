"""Erasing an input does not change a metadata blob under others that point to it."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.delete import own_metadata
from inference_store.erasure.mark import claims, marks
from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.retention.eraser import Eraser

from .holding import place
from .stored import METADATA_BLOB, Stored, Storing, ago
from .test_erasures import request


async def metadata_of(engine: AsyncEngine, one: Stored) -> StorageKey:
    query = select(inference.c.metadata_storage_key).where(inference.c.uid == one.uid)
    async with engine.connect() as connection:
        return parse_stored(await connection.scalar(query) or "")


async def shared(storing: Storing, model: int) -> tuple[Stored, Stored, StorageKey]:
    """One with a request in its metadata blob, and a stranger that points to that blob."""
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    blob = owner.objects[2]
    stranger = await storing.foreign(model, ago(hours=1), None, None, blob.key)
    storing.blobs.put(blob, METADATA_BLOB, content_type="application/json")
    return owner, stranger, blob


async def test_the_others_keep_it_as_it_is_and_it_goes_with_the_last_of_them(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await shared(storing, model)
    await place(engine, model, None, stranger.uid)
    # a crash after the new key was pointed to, and before anything was written there
    asked = await request(engine, owner, scope="input")
    async with engine.begin() as connection:
        page = await marks.page(connection, asked.id, after=None, limit=10)
        await claims.claim(connection, page)
        await own_metadata.reserve(connection, page, storing.bucket)
    assert await eraser.finish(asked) == "deleted"
    own = await metadata_of(engine, owner)
    assert own != blob
    assert storing.blobs.get(own, limit=1000) == METADATA_BLOB.partition(b', "request"')[0] + b"}"
    assert await metadata_of(engine, stranger) == blob
    assert storing.blobs.get(blob, limit=1000) == METADATA_BLOB
    again = await request(engine, owner, scope="input")
    assert await eraser.finish(again) == "deleted"
    assert (await metadata_of(engine, owner), storing.blobs.get(blob, limit=1000)) == (
        own,
        METADATA_BLOB,
    )


async def test_the_request_goes_when_the_last_that_shares_it_does(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await shared(storing, model)
    await eraser.finish(await request(engine, owner, scope="input"))
    own = await metadata_of(engine, owner)
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == {owner.objects[1].key, own.key}
    assert await eraser.finish(await request(engine, owner)) == "deleted"
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert storing.blobs.still_there([blob, own]) == []


async def test_and_where_the_owner_goes_first_nothing_of_it_is_left_either(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    owner, stranger, blob = await shared(storing, model)
    await eraser.finish(await request(engine, owner, scope="input"))
    assert await eraser.finish(await request(engine, owner)) == "deleted"
    assert storing.objects() == {blob.key}
    assert await eraser.finish(await request(engine, stranger)) == "deleted"
    assert storing.objects() == set()
