"""Events that a legal hold keeps do not expire on arrival; those being erased wait."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies, rows
from inference_store.erasure.pending_deletions import enqueue_arrivals, list_pending
from inference_store.erasure.policies import DEFAULT, RetentionPolicy
from inference_store.erasure.progress import finish_erasure, list_unfinished
from inference_store.index import key_registry, registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, erasing_object, erasure, inference, tombstone
from inference_store.index.unsettled import Record
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.layout import Kind, key_of
from inference_store.ingester.arrivals import Arrivals, sort_out
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.objects import Blobs
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import save
from inference_store.query.filters.names import KnownKeys
from tests.integration import erasure_requests
from tests.integration.ingester.conftest import erase, wait_for_counts
from tests.integration.retention.stored import place_hold
from tests.integration.stored_inferences import NewInference, make_indexable, store
from tests.producer import START, Capture, Producer, capture
from tests.transactions import fetch, scalar, transact

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=40)
RECORD = Record(PartitionId("default", "inference-events", 0, 0), 1, NOW, b"k", b"", ())


@pytest.fixture
async def model(engine: AsyncEngine) -> int:
    """Store a model that keeps inputs for ten days and inferences for thirty."""
    stored_model = await store(engine, NewInference("there", NOW, [("camera", "string", "a")]))
    policy = RetentionPolicy.model_validate(
        {"rules": [{"keep_input": "P10D", "keep_inference": "P30D"}]}
    )
    await transact(engine, policies.set_policy, stored_model, policy)
    return stored_model


async def _read_event(connection: AsyncConnection, camera: str, at: datetime = OLD) -> Indexable:
    registration = (await registrations.find_by_ids(connection, ["model"]))["model"]
    keys = ("bucket/data", None, None)
    inference = NewInference(f"of-{camera}", at, [("camera", "string", camera)], keys=keys)
    return make_indexable(inference, registration)


async def _sort_out(connection: AsyncConnection, *results: Indexable | MissingBlob) -> Arrivals:
    return await sort_out(connection, [ReadRecord(RECORD, result) for result in results])


async def test_what_is_held_is_stored_though_expired(engine: AsyncEngine, model: int) -> None:
    await place_hold(engine, model, "camera = 'held'")
    aged = NOW - timedelta(days=20)
    async with engine.begin() as connection:
        held, other = await _read_event(connection, "held"), await _read_event(connection, "other")
        half, less = (
            await _read_event(connection, "held", aged),
            await _read_event(connection, "other", aged),
        )
        await store(engine, NewInference("span", OLD), NewInference("span", aged))
        arrivals = await _sort_out(connection, held, other, half, less)
        marked = set((await connection.execute(select(erasing.c.uid))).scalars())
    fresh = [read.result for read in arrivals.fresh]
    names = [item.event.inference_id for item in fresh if isinstance(item, Indexable)]
    assert names == ["of-held", "of-held", "of-other"]
    assert [item for item, _ in arrivals.part_expired] == [less]
    assert [outcome for _, outcome in arrivals.settled] == [Outcome.EXPIRED]
    assert marked == {other.event.uid}


async def test_expired_event_waits_for_its_blob_if_a_hold_may_keep_it(
    engine: AsyncEngine, model: int
) -> None:
    """An unknown value is NULL, and NULL protects."""
    async with engine.begin() as connection:
        item = await _read_event(connection, "other")
        missing = MissingBlob("s3://bucket/m", "model", "of-other", item=item)
        assert (await _sort_out(connection, missing)).missing == []
        await connection.rollback()
    await place_hold(engine, model, "camera = 'held'")
    assert len((await transact(engine, _sort_out, missing)).missing) == 1


async def test_a_hold_keeps_objects_of_what_is_erased(engine: AsyncEngine, model: int) -> None:
    """The inference is not stored again: a certificate says that it is erased."""
    await place_hold(engine, model, "camera = 'held'")
    async with engine.begin() as connection:
        items = [await _read_event(connection, camera) for camera in ("held", "other")]
        rows = [{"model": model, "uid": item.event.uid} for item in items]
        await connection.execute(insert(tombstone), rows)
        arrivals = await _sort_out(connection, *items)
        marked = set((await connection.execute(select(erasing.c.uid))).scalars())
    assert [outcome for _, outcome in arrivals.settled] == [Outcome.ERASED_AGAIN] * 2
    assert marked == {items[1].event.uid}


async def test_erased_event_without_a_blob_is_erased_again_despite_an_older_hold(
    engine: AsyncEngine, model: int
) -> None:
    """If the eraser deleted a part while a producer wrote it again, the rest would stay."""
    await place_hold(engine, model, "camera = 'held'")
    async with engine.begin() as connection:
        tomb, claimed, marked = [
            await _read_event(connection, camera) for camera in ("other", "claimed", "marked")
        ]
        await connection.execute(insert(tombstone), [{"model": model, "uid": tomb.event.uid}])
        marks = [
            {"model": model, "uid": item.event.uid, "scope": "inference", "erasure": uuid4()}
            | {"claimed_at": at}
            for item, at in ((claimed, NOW + timedelta(days=1)), (marked, None))
        ]
        await connection.execute(insert(erasing), marks)
    assert await _find_queued(engine, tomb, claimed, marked) == {tomb.event.uid, claimed.event.uid}
    await place_hold(engine, model, "camera = 'of a younger hold'")
    assert await _find_queued(engine, tomb) == set()


async def _find_queued(engine: AsyncEngine, *items: Indexable) -> set[UUID]:
    """Redeliver events without their metadata; return the uids that are queued again."""
    names = [
        MissingBlob("s3://bucket/m", "model", item.event.inference_id, item=item) for item in items
    ]
    async with engine.begin() as connection:
        before = set((await connection.execute(select(erasing.c.erasure))).scalars())
        arrivals = await _sort_out(connection, *names)
        fresh = select(erasing.c.uid).where(erasing.c.erasure.not_in(before))
        queued = set((await connection.execute(fresh)).scalars())
        await connection.rollback()
    assert [outcome for _, outcome in arrivals.settled] == [Outcome.ERASED_AGAIN] * len(items)
    return queued


async def test_event_waits_if_its_own_object_is_claimed(engine: AsyncEngine) -> None:
    """It is erased as an orphan; nothing else is stopped."""
    await store(engine, NewInference("there", NOW))
    capture = uuid4()
    key = key_of("captures", "model", NOW, capture, "data")
    storage_key = str(StorageKey("bucket", key))
    extras = Extras(capture_id=capture)
    late_inference = NewInference("late", NOW, keys=(f"bucket/{key}", None, None), extras=extras)
    async with engine.begin() as connection:
        claimed = {"storage_key": storage_key, "erasure": uuid4(), "claimed_at": NOW}
        await connection.execute(insert(erasing_object).values(claimed))
        registration = (await registrations.find_by_ids(connection, ["model"]))["model"]
        late = make_indexable(late_inference, registration)
        assert late.shared_keys == ()
        arrivals = await _sort_out(connection, late)
    assert [blob.storage_key for _, blob in arrivals.missing] == [storage_key]
    assert arrivals.fresh == []


def make_capture(number: int, reviewed: str | None) -> Capture:
    """Make a capture that is five days old."""
    items = [{"key": "reviewed", "type": "bool", "value": reviewed}] if reviewed else []
    return capture(number, received_at=NOW - timedelta(days=5), metadata=items)


def make_rule(filter: str | None, **keep: str) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), KnownKeys()).text
    return {"saved": saved, **{f"keep_{name}": age for name, age in keep.items()}}


async def test_first_matching_rule_decides(producer: Producer, engine: AsyncEngine) -> None:
    first = make_capture(1, "true")
    rules = [
        make_rule("metadata.reviewed = TRUE", input="P1Y", inference="P1Y"),
        make_rule("metadata.reviewed = FALSE", input="P1D", inference="P2D"),
    ]
    rest = [make_rule(None, input="P3D", response="P4D", inference="P30D")]
    async with engine.begin() as connection:
        registration, _ = await registrations.put(connection, first.model_id, Details())
        own = RetentionPolicy.model_validate({"rules": rules})
        await policies.set_policy(connection, registration.model, own)
        wide = RetentionPolicy.model_validate({"rules": rest})
        body = await policies.describe_change(connection, DEFAULT, wide)
        await policies.apply_set(connection, body, NOW, "me")
    await producer.produce(first, make_capture(2, "false"), make_capture(3, None))
    await wait_for_counts(engine, stored=2, expired=1)
    async with engine.connect() as connection:
        there = set((await connection.execute(select(inference.c.uid))).scalars())
        marks = await connection.execute(select(erasing.c.uid, erasing.c.scope))
        scopes = sorted((row.uid in there, row.scope) for row in marks)
    assert scopes == [(False, "inference"), (True, "input"), (True, "response")]


# What is erased does not come back with a redelivery of its event, neither whole nor in part.


async def test_a_redelivery_of_what_was_erased_brings_no_example_of_it_back(
    producer: Producer, engine: AsyncEngine
) -> None:
    telling = capture(1, metadata=[{"key": "who", "type": "string", "value": "patient-4711"}])
    await producer.produce(telling)
    await wait_for_counts(engine, stored=1)
    async with engine.begin() as connection:
        row = (await connection.execute(select(inference.c.model, inference.c.uid))).one()
        erasure = await erasure_requests.request_erasure(
            connection, model=row.model, uids=[row.uid]
        )
    async with engine.begin() as connection:
        page = await list_pending(connection, erasure.id, after=None, limit=10)
        await rows.delete_rows(connection, erasure, page, objects=0)
        assert await finish_erasure(connection, erasure, error=None) == "deleted"
    other = capture(2, metadata=[{"key": "who", "type": "string", "value": "ward-7"}])
    await producer.produce(telling, other)
    await wait_for_counts(engine, stored=2, erased_again=1)
    entry = (await transact(engine, key_registry.find, row.model, ["who"]))["who"]
    assert [key_type.examples for key_type in entry.types] == [("ward-7",)]


NONE = (None, None, None)


async def test_deletes_erased_parts_that_are_written_again(
    producer: Producer, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    without_input, without_response, whole = (capture(number) for number in (1, 2, 3))
    everything = (without_input, without_response, whole)
    await producer.produce(*everything)
    await wait_for_counts(engine, stored=3)
    async with engine.begin() as connection:
        for item, column in (
            (without_input, "data_deleted_at"),
            (without_response, "response_deleted_at"),
        ):
            here = inference.c.data_storage_key.like(f"%{item.key('data')}")
            await connection.execute(update(inference).where(here).values({column: func.now()}))
    # All three objects are written again, and then the event.
    await producer.produce(*everything)
    await wait_for_counts(engine, stored=3, duplicate=3)
    queued = await transact(engine, list_unfinished, failed=False)
    assert sorted((erasure.cause, erasure.scope, erasure.marked) for erasure in queued) == [
        ("erased_again", "input", 1),
        ("erased_again", "response", 1),
    ]
    await erase(engine, blobs, *queued)
    kinds: list[Kind] = ["data", "response", "metadata"]
    keys = {c.key(k) for c in everything for k in kinds}
    remaining = blobs.still_there([StorageKey(bucket, key) for key in keys])
    gone = {without_input.key("data"), without_response.key("response")}
    assert {key.key for key in remaining} == keys - gone
    assert await scalar(engine, select(func.count()).select_from(inference)) == 3


@dataclass(frozen=True, slots=True)
class OwnCapture(Capture):
    """A capture of our proxy: no other has its keys, so its event does not wait for marks."""

    id: UUID = field(default_factory=uuid4)

    def key(self, kind: Kind) -> str:
        at = START + timedelta(milliseconds=self.number)
        return key_of("captures", self.model_id, at, self.id, kind)


def make_own_capture(number: int) -> OwnCapture:
    id = uuid4()
    return OwnCapture(number, extras={"capture_id": str(id)}, id=id)


async def test_deletes_again_what_was_written_during_the_deletion(
    producer: Producer, engine: AsyncEngine
) -> None:
    """Its row does not say yet that it is deleted. What is only marked is deleted afterwards."""
    claimed, marked = make_own_capture(1), make_own_capture(2)
    await producer.produce(claimed, marked)
    await wait_for_counts(engine, stored=2)
    async with engine.begin() as connection:
        rows = (await connection.execute(select(inference))).all()
        arrivals = [(row.model, row.uid, "input", row.data_storage_key, *NONE) for row in rows]
        await enqueue_arrivals(connection, arrivals, cause="policy")
        here = erasing.c.data_storage_key.like(f"%{claimed.key('data')}")
        await connection.execute(update(erasing).where(here).values(claimed_at=func.now()))
    await producer.produce(claimed, marked)
    await wait_for_counts(engine, stored=2, duplicate=2)
    query = select(erasing.c.scope, erasing.c.data_storage_key)
    query = query.join(erasure, erasure.c.id == erasing.c.erasure)
    again = await fetch(engine, query.where(erasure.c.cause == "erased_again"))
    assert [(row.scope, row.data_storage_key.endswith(claimed.key("data"))) for row in again] == [
        ("input", True)
    ]
