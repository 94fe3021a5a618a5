"""Events that a legal hold keeps do not expire on arrival; those being erased wait."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import DEFAULT, RetentionPolicy
from inference_store.index import registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.registrations import Details
from inference_store.index.tables import erasing, erasing_object, inference, tombstone
from inference_store.index.unsettled import Record
from inference_store.index.writing import Indexable
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.layout import key_of
from inference_store.ingester.arrivals import Arrivals, sort_out
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import save
from inference_store.query.filters.names import KnownKeys
from tests.integration.ingester.conftest import wait_for_counts
from tests.integration.retention.stored import place_hold
from tests.integration.stored_inferences import NewInference, make_indexable, store
from tests.producer import Capture, Producer, capture
from tests.transactions import transact

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


def _names(reads: Sequence[ReadRecord]) -> list[str]:
    return [read.result.event.inference_id for read in reads if isinstance(read.result, Indexable)]


async def test_what_is_held_is_stored_whole_though_it_has_expired(
    engine: AsyncEngine, model: int
) -> None:
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
    assert _names(arrivals.fresh) == ["of-held", "of-held", "of-other"]
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


async def test_hold_keeps_the_objects_of_an_erased_inference(
    engine: AsyncEngine, model: int
) -> None:
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
