"""What a legal hold keeps does not expire as it arrives."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import policies
from inference_store.erasure.policies import RetentionPolicy
from inference_store.index import registrations
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.records import Record
from inference_store.index.tables import erasing, tombstone
from inference_store.index.writing import Indexable
from inference_store.ingester.arrivals import Arrivals, sort_out
from inference_store.ingester.batch import MissingBlob, ReadRecord
from tests.integration.retention.holding import place
from tests.integration.stored import Made, indexable, store

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=40)
RECORD = Record(PartitionId("default", "inference-events", 0, 0), 1, NOW, b"k", b"", ())


@pytest.fixture
async def model(engine: AsyncEngine) -> int:
    """One that keeps inputs for ten days, and inferences for thirty."""
    found = await store(engine, Made("there", NOW, [("camera", "string", "a")]))
    policy = RetentionPolicy.model_validate(
        {"rules": [{"keep_input": "P10D", "keep_inference": "P30D"}]}
    )
    async with engine.begin() as connection:
        await policies.put(connection, found, policy)
    return found


async def _read(connection: AsyncConnection, camera: str, at: datetime = OLD) -> Indexable:
    registration = (await registrations.known(connection, ["model"]))["model"]
    keys = ("bucket/data", None, None)
    made = Made(f"of-{camera}", at, [("camera", "string", camera)], keys=keys)
    return indexable(made, registration)


async def _sorted(connection: AsyncConnection, *results: Indexable | MissingBlob) -> Arrivals:
    return await sort_out(connection, [ReadRecord(RECORD, each) for each in results])


def _names(reads: Sequence[ReadRecord]) -> list[str]:
    return [read.result.event.inference_id for read in reads if isinstance(read.result, Indexable)]


async def test_what_is_held_is_stored_whole_though_it_has_expired(
    engine: AsyncEngine, model: int
) -> None:
    await place(engine, model, "camera = 'held'")
    aged = NOW - timedelta(days=20)
    async with engine.begin() as connection:
        held, other = await _read(connection, "held"), await _read(connection, "other")
        half, less = await _read(connection, "held", aged), await _read(connection, "other", aged)
        await store(engine, Made("span", OLD), Made("span", aged))
        found = await _sorted(connection, held, other, half, less)
        marked = set((await connection.execute(select(erasing.c.uid))).scalars())
    assert _names(found.fresh) == ["of-held", "of-held", "of-other"]
    assert [item for item, _ in found.part_expired] == [less]
    assert [outcome for _, outcome in found.settled] == [Outcome.EXPIRED]
    assert marked == {other.event.uid}


async def test_what_has_expired_waits_for_its_blob_while_a_hold_may_keep_it(
    engine: AsyncEngine, model: int
) -> None:
    """What is not known is NULL, and NULL protects."""
    async with engine.begin() as connection:
        item = await _read(connection, "other")
        missing = MissingBlob("s3://bucket/m", "model", "of-other", item=item)
        assert (await _sorted(connection, missing)).missing == []
        await connection.rollback()
    await place(engine, model, "camera = 'held'")
    async with engine.begin() as connection:
        assert len((await _sorted(connection, missing)).missing) == 1


async def test_the_objects_of_what_was_erased_stay_where_a_hold_keeps_them(
    engine: AsyncEngine, model: int
) -> None:
    """It is not stored again: a certificate says that it is gone."""
    await place(engine, model, "camera = 'held'")
    async with engine.begin() as connection:
        items = [await _read(connection, camera) for camera in ("held", "other")]
        rows = [{"model": model, "uid": item.event.uid} for item in items]
        await connection.execute(insert(tombstone), rows)
        found = await _sorted(connection, *items)
        marked = set((await connection.execute(select(erasing.c.uid))).scalars())
    assert [outcome for _, outcome in found.settled] == [Outcome.ERASED_AGAIN] * 2
    assert marked == {items[1].event.uid}


async def test_what_was_erased_and_lacks_a_blob_is_erased_again_though_an_older_hold_is_in_doubt(
    engine: AsyncEngine, model: int
) -> None:
    """An eraser deleted a part of what a producer was writing again: the rest would stay."""
    await place(engine, model, "camera = 'held'")
    async with engine.begin() as connection:
        tomb, claimed, marked = [
            await _read(connection, camera) for camera in ("other", "claimed", "marked")
        ]
        await connection.execute(insert(tombstone), [{"model": model, "uid": tomb.event.uid}])
        marks = [
            {"model": model, "uid": item.event.uid, "scope": "inference", "erasure": uuid4()}
            | {"claimed_at": at}
            for item, at in ((claimed, NOW + timedelta(days=1)), (marked, None))
        ]
        await connection.execute(insert(erasing), marks)
    assert await _queued(engine, tomb, claimed, marked) == {tomb.event.uid, claimed.event.uid}
    await place(engine, model, "camera = 'of a younger hold'")
    assert await _queued(engine, tomb) == set()


async def _queued(engine: AsyncEngine, *items: Indexable) -> set[UUID]:
    """What becomes of these, redelivered without their metadata: those that are queued anew."""
    names = [
        MissingBlob("s3://bucket/m", "model", item.event.inference_id, item=item) for item in items
    ]
    async with engine.begin() as connection:
        before = set((await connection.execute(select(erasing.c.erasure))).scalars())
        found = await _sorted(connection, *names)
        fresh = select(erasing.c.uid).where(erasing.c.erasure.not_in(before))
        queued = set((await connection.execute(fresh)).scalars())
        await connection.rollback()
    assert [outcome for _, outcome in found.settled] == [Outcome.ERASED_AGAIN] * len(items)
    return queued
