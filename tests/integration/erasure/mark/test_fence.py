"""The races: of an ingester with an eraser, and of two retention services."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import object_claims, pending_deletions, rows
from inference_store.erasure.locks import fence_shared, open_election
from inference_store.erasure.pending_deletions import (
    PendingDeletion,
    enqueue_arrivals,
    find_claimed,
    list_pending,
)
from inference_store.erasure.progress import list_unfinished
from inference_store.index import partitions
from inference_store.index.tables import blob_reference, partition_span
from inference_store.inference.events import uid_floor
from tests.integration.erasure_requests import request_erasure
from tests.integration.stored_inferences import NewInference, at, store
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.transactions import transact

AT = datetime(2026, 1, 1, tzinfo=UTC)
UID = uid_floor(AT)
KEY = "s3://bucket/shared"
MARK = PendingDeletion(1, UID, "inference", KEY, None, None, None, None)


async def mark(engine: AsyncEngine) -> None:
    arrival = (1, UID, "inference", KEY, None, None, None)
    await transact(engine, enqueue_arrivals, [arrival], cause="erased_again")


async def claim(engine: AsyncEngine) -> frozenset[str]:
    return await transact(engine, object_claims.claim_objects, [MARK])


async def refer(engine: AsyncEngine, uid: UUID, ready: asyncio.Event, go: asyncio.Event) -> bool:
    """An ingester's transaction: in the fence, then a reference unless the key is claimed."""
    async with engine.begin() as connection:
        await fence_shared(connection)
        if await find_claimed(connection, [KEY]):
            ready.set()
            return False
        ready.set()
        await go.wait()
        values = {"storage_key": KEY, "model": 1, "uid": uid}
        await connection.execute(insert(blob_reference).values(values))
    return True


async def test_waits_for_a_writer_that_came_first(engine: AsyncEngine) -> None:
    ready, go = asyncio.Event(), asyncio.Event()
    writing = asyncio.create_task(refer(engine, uuid4(), ready, go))
    await ready.wait()
    await mark(engine)
    claiming = asyncio.create_task(claim(engine))
    await until(lambda: count_lock_waiters(engine), lambda count: count == 1)
    assert not claiming.done()
    go.set()
    assert await writing
    assert await claiming == frozenset()


async def test_a_writer_that_comes_later_sees_the_claim(engine: AsyncEngine) -> None:
    await mark(engine)
    assert await claim(engine) == {KEY}
    assert not await refer(engine, uuid4(), asyncio.Event(), asyncio.Event())


async def test_takes_other_objects_of_an_inference(engine: AsyncEngine) -> None:
    """An edit's blob is in no column of the mark."""
    other, foreign = "s3://bucket/metadata/m/u", uuid4()
    values = [
        {"storage_key": key, "model": 1, "uid": uid}
        for key, uid in ((other, UID), ("s3://bucket/kept", UID), ("s3://bucket/kept", foreign))
    ]
    async with engine.begin() as connection:
        await connection.execute(insert(blob_reference), values)
    await mark(engine)
    async with engine.begin() as connection:
        (erasure,) = await list_unfinished(connection, failed=False)
        (pending,) = await list_pending(connection, erasure.id, after=None, limit=10)
        assert await object_claims.claim_objects(connection, [pending]) == {KEY}
        await object_claims.record_claims(connection, erasure.id, [pending])
        assert await object_claims.claim_objects(connection, [pending]) == {KEY, other}
        assert await find_claimed(connection, [other, "s3://bucket/strange"]) == {other}


async def test_a_closed_or_missing_span_takes_no_events(engine: AsyncEngine) -> None:
    later = AT + timedelta(days=100)
    await partitions.make_missing(engine, [AT, later], target=1000)
    async with engine.begin() as connection:
        assert await rows.find_closed(connection, []) == set()
        assert await rows.find_closed(connection, [AT, later]) == set()
        await connection.execute(
            partition_span.update().where(partition_span.c.lo <= AT).values(state="dropping")
        )
        nowhere = AT + timedelta(days=50)
        assert await rows.find_closed(connection, [AT, nowhere, later]) == {AT, nowhere}


async def test_an_empty_span_is_left_while_it_is_new(engine: AsyncEngine) -> None:
    await partitions.make_missing(engine, [AT], target=1000)
    async with engine.begin() as connection:
        ((span, closed),) = await rows.list_ending(connection, until=AT + timedelta(days=900))
        assert not closed
        assert not await rows.close_span(connection, span, {})
        past = datetime.now(UTC) - timedelta(hours=2)
        await connection.execute(partition_span.update().values(created_at=past))
        assert await rows.close_span(connection, span, {})
        assert await rows.list_ending(connection, until=None) == [(span, True)]


async def test_only_one_service_leads_at_a_time(engine: AsyncEngine) -> None:
    async with open_election(engine) as second:
        async with open_election(engine) as first:
            assert await first.take()
            await first.confirm()
            assert not await second.take()
        assert await second.take()


async def test_a_tombstone_has_the_time_of_the_last_transaction(engine: AsyncEngine) -> None:
    """By the clock that orders holds and erasures: on Citus the coordinator's."""
    inferences = [NewInference(name, at(n)) for n, name in enumerate("ab")]
    uids = [inference.uid for inference in inferences]
    for _ in range(2):
        model = await store(engine, *inferences)
        erasure = await transact(engine, request_erasure, model=model, uids=uids, scope="inference")
        async with engine.begin() as connection:
            now = await connection.scalar(select(func.now()))
            pending = await list_pending(connection, erasure.id, after=None, limit=10)
            assert await rows.delete_rows(connection, erasure, pending, objects=0) == 2
        times = await transact(engine, pending_deletions.find_times, [(model, uid) for uid in uids])
        assert times == {(model, uid): now for uid in uids}
