"""Dead letters and parked events of what is erased go with it, and the books still close."""

from typing import Any

import httpx
import orjson
import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import dead_letters, parked
from inference_store.store.blobs import Blobs
from inference_store.store.books import Place, begin
from inference_store.store.events import StorageKey
from inference_store.store.records import Record, Trouble
from inference_store.store.tables import dead_letter, kafka_partition, parked_event
from tests.builders import NOW, make_payload

from .test_erasures import Serve, asked, followed, serve, stored

__all__ = ["serve", "stored"]
pytestmark = pytest.mark.usefixtures("stored")
_PLACE = Place("default", "inference-events", 0, 0)
_SCHEDULE = parked.Schedule(*(3 * [NOW - NOW]))


def payload(offset: int, **changes: Any) -> bytes:
    keys = {f"{kind}_storage_key": f"late/{offset}/{kind}" for kind in ("data", "metadata")}
    return make_payload(
        model_id="model",
        inference_id=f"late-{offset}",
        inference_storage_key=None,
        **{**keys, **changes},
    )


def record(offset: int, event: bytes) -> tuple[Record, Trouble]:
    trouble = Trouble("blob_missing", "late", "model", f"late-{offset}")
    return Record(_PLACE, offset, NOW, b"key", event, (("h", "v"),)), trouble


def metadata(who: str) -> bytes:
    return orjson.dumps([{"key": "person", "type": "string", "value": who}])


@pytest.fixture(autouse=True)
async def set_aside(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """By offset: 0 and 1 dead of ann and bob, 2 dead and unreadable, of ann; 3 parked of ann, 4 of
    bob; 5 dead, its metadata cannot be read."""
    for offset, who in enumerate(("ann", "bob", "ann", "ann", "bob")):
        for kind, blob in (("metadata", metadata(who)), ("data", b"x")):
            key = StorageKey(bucket, f"late/{offset}/{kind}")
            blobs.put(key, blob, content_type="text/plain")
    letters = [record(n, payload(n)) for n in (0, 1)]
    letters += [record(2, b'{"person": "ann", "broken'), record(5, payload(5))]
    async with engine.begin() as connection:
        await begin(connection, _PLACE, first=0, began="earliest")
        await dead_letters.add(connection, letters)
        waiting = [(*record(n, payload(n)), f"s3://{bucket}/nowhere") for n in (3, 4)]
        await parked.add(connection, waiting, _SCHEDULE)
        counted = kafka_partition.update().values(next=6, dead=4, parked=2)
        await connection.execute(counted)


async def letters(engine: AsyncEngine) -> dict[int, tuple[str, bool]]:
    """By offset: the state, and whether the bytes are there."""
    here = dead_letter.c
    async with engine.connect() as connection:
        rows = await connection.execute(select(here.offset, here.state, here.payload))
        return {row.offset: (row.state, bool(row.payload)) for row in rows}


async def waiting(engine: AsyncEngine) -> set[int]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(parked_event.c.offset))).scalars())


async def test_those_that_tell_of_a_subject_go_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str, serve: Serve
) -> None:
    one = await asked(client, {"subject": {"key": "person", "value": "ann"}})
    await serve()
    one = await followed(client, one)
    assert one["state"] == "deleted", one
    assert await letters(engine) == {
        0: ("discarded", False),
        1: ("open", True),
        2: ("discarded", False),
        5: ("open", True),
    }
    assert await waiting(engine) == {4}
    assert (one["rows"]["dead_letter"], one["rows"]["parked_event"]) == (2, 1)
    left = [StorageKey(bucket, f"late/{n}/{k}") for n in range(5) for k in ("data", "metadata")]
    there = {key.key for key in blobs.still_there(left)}
    assert there == {f"late/{n}/{k}" for n in (1, 2, 4) for k in ("data", "metadata")}
    async with engine.connect() as connection:
        book = (await connection.execute(select(kafka_partition))).one()
        taken = await connection.scalar(
            text("SELECT count(*) FROM dead_letter WHERE discard_reason LIKE 'erased by %'")
        )
    assert (book.dead, book.parked, book.erased_again) == (4, 1, 1)
    assert taken == 2
    # what it was asked for by is forgotten with it
    assert one["asked"] == {"subject": {"key": "person", "type": None}}


async def test_those_of_an_erased_inference_go_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """By its uid, which the event gives: and by an id that was asked for, where it cannot."""
    await serve()
    async with engine.begin() as connection:
        again = payload(0).replace(b'"late-0"', b'"i1"')
        values = {"payload": again, "inference_id": "i1"}
        await connection.execute(dead_letter.update().values(values).where(_at(0)))
        await connection.execute(dead_letter.update().values(inference_id="i1").where(_at(2)))
    one = await asked(client, {"inference_ids": ["i1"]})
    await serve()
    assert (await followed(client, one))["state"] == "deleted"
    found = await letters(engine)
    assert found[2] == ("discarded", False)
    # another inference, of the same id: its uid is not the erased one's
    assert found[0] == ("open", True)
    assert await waiting(engine) == {3, 4}


def _at(offset: int) -> Any:
    return dead_letter.c.offset == offset
