"""Dead letters and parked events of what is erased go with it, and the books still close."""

from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import erasures
from inference_store.erasure.ledger import Ledger
from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.audit import note
from inference_store.index.records import Record, Trouble
from inference_store.index.tables import (
    audit,
    dead_letter,
    kafka_partition,
    parked_event,
    registration,
)
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store.retention.leadership_check import Stopped
from inference_store.retention.quarantine import QuarantineEraser
from tests.builders import NOW, make_payload
from tests.integration.retention.holding import place, release

from .test_erasures import NoPace, Serve, asked, followed, serve, stored

__all__ = ["serve", "stored"]
pytestmark = pytest.mark.usefixtures("stored")
_PLACE = PartitionId("default", "inference-events", 0, 0)
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
        await open_partition(connection, _PLACE, first=0, began="earliest")
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


async def test_one_whose_answer_alone_tells_of_the_subject_goes_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """The engine copied the metadata; what the caller sent of the same key wins, of bob's 4."""
    answer = orjson.dumps({"outputs": [{"parameters": {"metadata": metadata("ann").decode()}}]})
    copied = payload(1, metadata="[]", response=answer.decode())
    own = payload(4, metadata=metadata("bob").decode(), response=answer.decode())
    async with engine.begin() as connection:
        await connection.execute(
            dead_letter.update().values(payload=copied).where(dead_letter.c.offset == 1)
        )
        here = parked_event.c.offset == 4
        await connection.execute(parked_event.update().values(payload=own).where(here))
    one = await asked(client, SUBJECT)
    await serve()
    assert (await followed(client, one))["state"] == "deleted"
    assert (await letters(engine))[1] == ("discarded", False)
    assert await waiting(engine) == {4}


async def test_those_of_an_erased_inference_go_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """By its uid, which the event gives: and by an id that was asked for, where it cannot."""
    await serve()
    async with engine.begin() as connection:
        again = payload(0).replace(b'"late-0"', b'"i1"')
        values = {"payload": again, "inference_id": "i1"}
        await connection.execute(dead_letter.update().values(values).where(of_offset(0)))
        await connection.execute(dead_letter.update().values(inference_id="i1").where(of_offset(2)))
    one = await asked(client, {"inference_ids": ["i1"]})
    await serve()
    assert (await followed(client, one))["state"] == "deleted"
    found = await letters(engine)
    assert found[2] == ("discarded", False)
    # another inference, of the same id: its uid is not the erased one's
    assert found[0] == ("open", True)
    assert await waiting(engine) == {3, 4}


SUBJECT = {"subject": {"key": "person", "value": "ann"}}
UNTOUCHED = {0: ("open", True), 1: ("open", True), 2: ("open", True), 5: ("open", True)}


async def test_what_a_hold_keeps_of_all_stays_until_it_is_released(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str, serve: Serve
) -> None:
    placed = await place(engine, None, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    one = await asked(client, SUBJECT)
    await serve()
    one = await followed(client, one)
    # three that are stored, two dead letters and a parked event
    assert (one["state"], one["progress"]["held"], one["inferences"]) == ("partly_held", 6, 0), one
    assert await letters(engine) == UNTOUCHED
    assert await waiting(engine) == {3, 4}
    await release(engine, placed)
    await serve()
    one = await followed(client, one)
    assert (one["state"], one["progress"]["held"]) == ("deleted", 0), one
    found = await letters(engine)
    assert (found[0], found[2]) == (("discarded", False), ("discarded", False))
    assert await waiting(engine) == {4}
    left = [StorageKey(bucket, f"late/{n}/{k}") for n in (0, 3) for k in ("data", "metadata")]
    assert blobs.still_there(left) == []


async def test_a_hold_is_asked_by_ids_and_by_metadata_and_what_is_unknown_is_kept(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    """Offset 0 by its id, 2 for it cannot be read; 3 is of ann, whom the other does not name."""
    model = await _model(engine)
    by_id = await place(engine, model, "inference_ids = 'late-0'")
    await place(engine, model, "person = 'bob'")
    one = await asked(client, SUBJECT)
    await serve()
    one = await followed(client, one)
    assert (one["state"], one["progress"]["held"]) == ("partly_held", 2), one
    assert await letters(engine) == UNTOUCHED
    assert await waiting(engine) == {4}
    await release(engine, by_id)
    await serve()
    one = await followed(client, one)
    assert (one["state"], one["progress"]["held"]) == ("partly_held", 1), one
    assert (await letters(engine))[0] == ("discarded", False)


async def test_a_hold_of_an_erased_id_keeps_what_tells_of_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    async with engine.begin() as connection:
        await connection.execute(dead_letter.update().values(inference_id="i1").where(of_offset(2)))
    one = await asked(client, {"inference_ids": ["i1"]})
    placed = await place(engine, await _model(engine), "person = 'nobody'")
    await serve()
    one = await followed(client, one)
    assert (one["state"], one["progress"]["held"], one["inferences"]) == ("partly_held", 1, 1), one
    assert (await letters(engine))[2] == ("open", True)
    await release(engine, placed)
    await serve()
    assert (await followed(client, one))["state"] == "deleted"
    assert (await letters(engine))[2] == ("discarded", False)


async def test_an_event_of_what_was_erased_takes_its_own_objects_along(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str, serve: Serve
) -> None:
    """A parked event of what another erasure took; its metadata are at another place."""
    await serve()
    await asked(client, SUBJECT)
    await serve()
    keys = [StorageKey(bucket, name) for name in ("late/0/data", "late/7/metadata")]
    for key in keys:
        blobs.put(key, metadata("ann"), content_type="text/plain")
    again = payload(0).replace(b"late/0/metadata", b"late/7/metadata")
    async with engine.begin() as connection:
        await parked.add(connection, [(*record(6, again), f"s3://{bucket}/no")], _SCHEDULE)
        await connection.execute(kafka_partition.update().values(next=7, parked=2))
    one = await asked(client, {"inference_ids": ["i1"]})
    await serve()
    assert (await followed(client, one))["rows"]["parked_event"] == 1
    assert await waiting(engine) == {4}
    await serve()
    assert blobs.still_there(keys) == []


async def test_an_erasure_that_is_cancelled_has_taken_nothing(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, serve: Serve
) -> None:
    """Cancelled between the marks and the first that is taken: the marks go, all else stays."""
    one = await asked(client, SUBJECT)

    class Cancelling(QuarantineEraser):
        async def _remove(self, *args: Any) -> bool:
            answer = await client.post(f"/v1/erasures/{one['id']}/cancel")
            assert answer.status_code == 202, answer.text
            return await super()._remove(*args)

    async with engine.connect() as connection:
        found = await erasures.find(connection, UUID(one["id"]))
    assert found is not None
    ledger = Ledger(engine, blobs, prefix="ledger/")
    await Cancelling(engine, blobs, NoPace()).remove_subject(found, ledger, actor="retention")
    await serve()
    assert (await followed(client, one))["state"] == "cancelled"
    assert await letters(engine) == UNTOUCHED
    assert await waiting(engine) == {3, 4}


async def test_from_the_first_that_is_taken_it_cannot_be_cancelled(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs
) -> None:
    one = await asked(client, SUBJECT)
    async with engine.connect() as connection:
        found = await erasures.find(connection, UUID(one["id"]))
    assert found is not None
    ledger = Ledger(engine, blobs, prefix="ledger/")
    await QuarantineEraser(engine, blobs, NoPace()).remove_subject(found, ledger, actor="retention")
    assert (await client.post(f"/v1/erasures/{one['id']}/cancel")).status_code == 409


async def test_what_the_audit_says_of_a_subject_goes_with_it(
    client: httpx.AsyncClient, engine: AsyncEngine, serve: Serve
) -> None:
    said: list[dict[str, Any]] = [
        {"filter": "person = 'ann'"},
        {"filter": "person = 'bob'"},
        {"reason": "annual"},
        {"reason": "ann asked for it"},
    ]
    async with engine.begin() as connection:
        for each in said:
            await note(connection, Who("key:ada", None), Action.POLICY_SET, **each)
    one = await asked(client, SUBJECT)
    await serve()
    one = await followed(client, one)
    assert (one["state"], one["rows"]["audit"]) == ("deleted", 2), one
    query = select(audit.c.detail).where(audit.c.action == "policy_set").order_by(audit.c.id)
    async with engine.connect() as connection:
        assert list((await connection.execute(query)).scalars()) == [{}, *said[1:3], {}]


async def test_a_look_through_the_audit_is_committed_by_pages_and_goes_on(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs
) -> None:
    one = await asked(client, SUBJECT)
    said = "CASE WHEN n % 1000 = 1 THEN 'person = ''ann''' ELSE '' END"
    async with engine.begin() as connection:
        made = f"SELECT 'x', 'policy_set', jsonb_build_object('filter', {said})"
        many = "FROM generate_series(1, 2500) AS n"
        await connection.execute(text(f"INSERT INTO audit (actor, action, detail) {made} {many}"))
        found = await erasures.find(connection, UUID(one["id"]))
    assert found is not None

    class Interrupted(NoPace):
        steps = 0

        async def confirm_step(self) -> None:
            self.steps += 1
            if self.steps == 3:
                raise Stopped

    asides = QuarantineEraser(engine, blobs, Interrupted())
    with pytest.raises(Stopped):
        await asides.remove_mentions(found)
    taken = select(func.count()).where(audit.c.taken_by.is_not(None), audit.c.actor == "x")
    async with engine.connect() as connection:
        assert await connection.scalar(taken) == 2
    await asides.remove_mentions(found)
    async with engine.connect() as connection:
        assert await connection.scalar(taken) == 3
        again = await erasures.find(connection, found.id)
    assert again is not None
    assert again.table_rows["audit"] == 3


async def _model(engine: AsyncEngine) -> int:
    query = select(registration.c.model).where(registration.c.model_id == "model")
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


def of_offset(offset: int) -> Any:
    return dead_letter.c.offset == offset
