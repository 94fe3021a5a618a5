"""An erasure removes the dead letters and parked events of what it erases; the accounts close."""

from typing import Any
from uuid import UUID

import httpx
import orjson
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.progress.erasure import find_erasure
from inference_store.index import dead_letters, parked
from inference_store.index.accounting import PartitionId, open_partition
from inference_store.index.audit import note
from inference_store.index.records import Record, Rejection
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
from inference_store.retention.residual import remove_mentions
from inference_store.retention.residual_in_holds import ResidualInHolds
from tests.builders import NOW, make_payload
from tests.integration.retention.holding import place_hold, release_hold

from .test_erasures import (
    AlwaysLeader,
    RunRetention,
    read_erasure,
    request_erasure,
    run_retention,
    stored,
)

__all__ = ["run_retention", "stored"]
pytestmark = pytest.mark.usefixtures("stored")
_PARTITION = PartitionId("default", "inference-events", 0, 0)
_SCHEDULE = parked.Schedule(*(3 * [NOW - NOW]))


def make_event(offset: int, **changes: Any) -> bytes:
    keys = {f"{kind}_storage_key": f"late/{offset}/{kind}" for kind in ("data", "metadata")}
    return make_payload(
        model_id="model",
        inference_id=f"late-{offset}",
        inference_storage_key=None,
        **{**keys, **changes},
    )


def make_rejected(offset: int, payload: bytes) -> tuple[Record, Rejection]:
    rejection = Rejection("blob_missing", "late", "model", f"late-{offset}")
    return Record(_PARTITION, offset, NOW, b"key", payload, (("h", "v"),)), rejection


def encode_metadata(who: str) -> bytes:
    return orjson.dumps([{"key": "person", "type": "string", "value": who}])


@pytest.fixture(autouse=True)
async def letters_and_parked(engine: AsyncEngine, blobs: Blobs, bucket: str) -> None:
    """Dead letters and parked events, by offset.

    0: dead, of ann. 1: dead, of bob. 2: dead, of ann, cannot be decoded. 3: parked, of ann.
    4: parked, of bob. 5: dead, its metadata cannot be read.
    """
    for offset, name in enumerate(("ann", "bob", "ann", "ann", "bob")):
        for kind, blob in (("metadata", encode_metadata(name)), ("data", b"x")):
            key = StorageKey(bucket, f"late/{offset}/{kind}")
            blobs.put(key, blob, content_type="text/plain")
    rejected = [make_rejected(n, make_event(n)) for n in (0, 1)]
    rejected += [make_rejected(2, b'{"person": "ann", "broken'), make_rejected(5, make_event(5))]
    async with engine.begin() as connection:
        await open_partition(connection, _PARTITION, first=0, began="earliest")
        await dead_letters.add(connection, rejected)
        events = [(*make_rejected(n, make_event(n)), f"s3://{bucket}/nowhere") for n in (3, 4)]
        await parked.add(connection, events, _SCHEDULE)
        counts = kafka_partition.update().values(next=6, dead=4, parked=2)
        await connection.execute(counts)


async def read_letters(engine: AsyncEngine) -> dict[int, tuple[str, bool]]:
    """Return the state of each dead letter, and whether its bytes are stored, by offset."""
    columns = dead_letter.c
    async with engine.connect() as connection:
        rows = await connection.execute(select(columns.offset, columns.state, columns.payload))
        return {row.offset: (row.state, bool(row.payload)) for row in rows}


async def list_parked(engine: AsyncEngine) -> set[int]:
    async with engine.connect() as connection:
        return set((await connection.execute(select(parked_event.c.offset))).scalars())


async def test_erases_letters_and_parked_events_of_a_subject(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    run_retention: RunRetention,
) -> None:
    erasure = await request_erasure(client, {"subject": {"key": "person", "value": "ann"}})
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert erasure["state"] == "deleted", erasure
    assert await read_letters(engine) == {
        0: ("discarded", False),
        1: ("open", True),
        2: ("discarded", False),
        5: ("open", True),
    }
    assert await list_parked(engine) == {4}
    assert (erasure["rows"]["dead_letter"], erasure["rows"]["parked_event"]) == (2, 1)
    keys = [StorageKey(bucket, f"late/{n}/{k}") for n in range(5) for k in ("data", "metadata")]
    remaining = {key.key for key in blobs.still_there(keys)}
    assert remaining == {f"late/{n}/{k}" for n in (1, 2, 4) for k in ("data", "metadata")}
    async with engine.connect() as connection:
        book = (await connection.execute(select(kafka_partition))).one()
        discarded = await connection.scalar(
            text("SELECT count(*) FROM dead_letter WHERE discard_reason LIKE 'erased by %'")
        )
    assert (book.dead, book.parked, book.erased_again) == (4, 1, 1)
    assert discarded == 2
    # the subject's value is removed from the erasure itself
    assert erasure["asked"] == {"subject": {"key": "person", "type": None}}


async def test_erases_event_whose_response_names_the_subject(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """The response repeats the metadata; in event 4 the caller's own value of the key wins."""
    answer = orjson.dumps(
        {"outputs": [{"parameters": {"metadata": encode_metadata("ann").decode()}}]}
    )
    copied = make_event(1, metadata="[]", response=answer.decode())
    own = make_event(4, metadata=encode_metadata("bob").decode(), response=answer.decode())
    async with engine.begin() as connection:
        await connection.execute(
            dead_letter.update().values(payload=copied).where(dead_letter.c.offset == 1)
        )
        is_fourth = parked_event.c.offset == 4
        await connection.execute(parked_event.update().values(payload=own).where(is_fourth))
    erasure = await request_erasure(client, SUBJECT)
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert (await read_letters(engine))[1] == ("discarded", False)
    assert await list_parked(engine) == {4}


async def test_erases_letters_of_an_erased_inference(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """The event's uid decides, or the requested id if the event cannot be decoded."""
    await run_retention()
    async with engine.begin() as connection:
        again = make_event(0).replace(b'"late-0"', b'"i1"')
        values = {"payload": again, "inference_id": "i1"}
        await connection.execute(dead_letter.update().values(values).where(is_at_offset(0)))
        await connection.execute(
            dead_letter.update().values(inference_id="i1").where(is_at_offset(2))
        )
    erasure = await request_erasure(client, {"inference_ids": ["i1"]})
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    states = await read_letters(engine)
    assert states[2] == ("discarded", False)
    # another inference of the same id: its uid differs from the erased one
    assert states[0] == ("open", True)
    assert await list_parked(engine) == {3, 4}


SUBJECT = {"subject": {"key": "person", "value": "ann"}}
ALL_OPEN = {0: ("open", True), 1: ("open", True), 2: ("open", True), 5: ("open", True)}


async def test_hold_on_everything_keeps_letters_until_its_release(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    run_retention: RunRetention,
) -> None:
    hold = await place_hold(engine, None, "received_at > TIMESTAMP('2000-01-01T00:00:00Z')")
    erasure = await request_erasure(client, SUBJECT)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    # three stored inferences, two dead letters and a parked event
    assert (erasure["state"], erasure["progress"]["held"], erasure["inferences"]) == (
        "partly_held",
        6,
        0,
    ), erasure
    assert await read_letters(engine) == ALL_OPEN
    assert await list_parked(engine) == {3, 4}
    await release_hold(engine, hold)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    states = await read_letters(engine)
    assert (states[0], states[2]) == (("discarded", False), ("discarded", False))
    assert await list_parked(engine) == {4}
    keys = [StorageKey(bucket, f"late/{n}/{k}") for n in (0, 3) for k in ("data", "metadata")]
    assert blobs.still_there(keys) == []


async def test_holds_match_letters_by_id_and_metadata(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    """Offset 0 is held by its id, and 2 since it cannot be decoded; no hold matches 3."""
    model = await _find_model(engine)
    hold = await place_hold(engine, model, "inference_ids = 'late-0'")
    await place_hold(engine, model, "person = 'bob'")
    erasure = await request_erasure(client, SUBJECT)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("partly_held", 2), erasure
    assert await read_letters(engine) == ALL_OPEN
    assert await list_parked(engine) == {4}
    await release_hold(engine, hold)
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("partly_held", 1), erasure
    assert (await read_letters(engine))[0] == ("discarded", False)


async def test_hold_keeps_undecodable_letter_of_an_erased_id(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            dead_letter.update().values(inference_id="i1").where(is_at_offset(2))
        )
    erasure = await request_erasure(client, {"inference_ids": ["i1"]})
    hold = await place_hold(engine, await _find_model(engine), "person = 'nobody'")
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["progress"]["held"], erasure["inferences"]) == (
        "partly_held",
        1,
        1,
    ), erasure
    assert (await read_letters(engine))[2] == ("open", True)
    await release_hold(engine, hold)
    await run_retention()
    assert (await read_erasure(client, erasure))["state"] == "deleted"
    assert (await read_letters(engine))[2] == ("discarded", False)


async def test_erases_objects_of_a_late_event(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    run_retention: RunRetention,
) -> None:
    """A parked event of an inference that is already erased has its metadata under another key."""
    await run_retention()
    await request_erasure(client, SUBJECT)
    await run_retention()
    keys = [StorageKey(bucket, name) for name in ("late/0/data", "late/7/metadata")]
    for key in keys:
        blobs.put(key, encode_metadata("ann"), content_type="text/plain")
    again = make_event(0).replace(b"late/0/metadata", b"late/7/metadata")
    async with engine.begin() as connection:
        await parked.add(connection, [(*make_rejected(6, again), f"s3://{bucket}/no")], _SCHEDULE)
        await connection.execute(kafka_partition.update().values(next=7, parked=2))
    erasure = await request_erasure(client, {"inference_ids": ["i1"]})
    await run_retention()
    assert (await read_erasure(client, erasure))["rows"]["parked_event"] == 1
    assert await list_parked(engine) == {4}
    await run_retention()
    assert blobs.still_there(keys) == []


async def test_cancelled_erasure_removes_nothing(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, run_retention: RunRetention
) -> None:
    """Cancelled after marking and before the first removal: only the marks go."""
    requested = await request_erasure(client, SUBJECT)

    class Cancelling(QuarantineEraser):
        async def _remove(self, *args: Any) -> bool:
            answer = await client.post(f"/v1/erasures/{requested['id']}/cancel")
            assert answer.status_code == 202, answer.text
            return await super()._remove(*args)

    async with engine.connect() as connection:
        erasure = await find_erasure(connection, UUID(requested["id"]))
    assert erasure is not None
    ledger = Ledger(engine, blobs, prefix="ledger/")
    await Cancelling(engine, blobs, AlwaysLeader()).remove_subject(
        erasure, ledger, actor="retention"
    )
    await run_retention()
    assert (await read_erasure(client, requested))["state"] == "cancelled"
    assert await read_letters(engine) == ALL_OPEN
    assert await list_parked(engine) == {3, 4}


async def test_from_the_first_that_is_taken_it_cannot_be_cancelled(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs
) -> None:
    requested = await request_erasure(client, SUBJECT)
    async with engine.connect() as connection:
        erasure = await find_erasure(connection, UUID(requested["id"]))
    assert erasure is not None
    ledger = Ledger(engine, blobs, prefix="ledger/")
    await QuarantineEraser(engine, blobs, AlwaysLeader()).remove_subject(
        erasure, ledger, actor="retention"
    )
    assert (await client.post(f"/v1/erasures/{requested['id']}/cancel")).status_code == 409


async def test_redacts_mentions_in_the_audit(
    client: httpx.AsyncClient, engine: AsyncEngine, run_retention: RunRetention
) -> None:
    details: list[dict[str, Any]] = [
        {"filter": "person = 'ann'"},
        {"filter": "person = 'bob'"},
        {"reason": "annual"},
        {"reason": "ann asked for it"},
    ]
    async with engine.begin() as connection:
        for detail in details:
            await note(connection, Who("key:ada", None), Action.POLICY_SET, **detail)
    erasure = await request_erasure(client, SUBJECT, "/v1/erasures")
    await run_retention()
    erasure = await read_erasure(client, erasure)
    assert (erasure["state"], erasure["rows"]["audit"]) == ("deleted", 2), erasure
    query = select(audit.c.detail).where(audit.c.action == "policy_set").order_by(audit.c.id)
    async with engine.connect() as connection:
        assert list((await connection.execute(query)).scalars()) == [{}, *details[1:3], {}]


async def test_redaction_of_the_audit_commits_pages_and_resumes(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    requested = await request_erasure(client, SUBJECT, "/v1/erasures")
    mention = "CASE WHEN n % 1000 = 1 THEN 'person = ''ann''' ELSE '' END"
    async with engine.begin() as connection:
        rows = f"SELECT 'x', 'policy_set', jsonb_build_object('filter', {mention})"
        numbers = "FROM generate_series(1, 2500) AS n"
        await connection.execute(
            text(f"INSERT INTO audit (actor, action, detail) {rows} {numbers}")
        )
        erasure = await find_erasure(connection, UUID(requested["id"]))
    assert erasure is not None

    class Interrupted(AlwaysLeader):
        steps = 0

        async def confirm_step(self) -> None:
            self.steps += 1
            if self.steps == 3:
                raise Stopped

    check = Interrupted()
    in_holds = ResidualInHolds(engine, check, None)
    with pytest.raises(Stopped):
        await remove_mentions(engine, in_holds, erasure, check)
    redacted = select(func.count()).where(audit.c.taken_by.is_not(None), audit.c.actor == "x")
    async with engine.connect() as connection:
        assert await connection.scalar(redacted) == 2
    await remove_mentions(engine, in_holds, erasure, check)
    async with engine.connect() as connection:
        assert await connection.scalar(redacted) == 3
        finished = await find_erasure(connection, erasure.id)
    assert finished is not None
    assert finished.table_rows["audit"] == 3


async def _find_model(engine: AsyncEngine) -> int:
    query = select(registration.c.model).where(registration.c.model_id == "model")
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


def is_at_offset(offset: int) -> Any:
    return dead_letter.c.offset == offset
