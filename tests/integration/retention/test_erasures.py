"""Erasing on request, what arrived too late, and objects that several inferences share."""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from threading import Event
from uuid import UUID, uuid4

import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import object_claims, pending_deletions, rows
from inference_store.erasure.held_deletions import resume_released
from inference_store.erasure.holds import Placement
from inference_store.erasure.pending_deletions import enqueue_arrivals, find_scopes, list_pending
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, list_unfinished
from inference_store.erasure.requests import describe_ids, request_erasure
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import erased_span, erasing, inference, partition_span
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.operations.reconcile.reconciler import count_against_accounting
from inference_store.platform.settings import RetentionSettings
from tests.polling import until
from tests.servers.minio import S3
from tests.transactions import scalar, transact

from .conftest import Mark
from .stored import METADATA_BLOB, NOW, Stored, Storing, ago
from .test_holds import Watched, _find_marked


async def test_a_request_marks_at_once_and_is_worked_off(storing: Storing) -> None:
    model, doomed = await storing.begin(25, ago(days=1))
    (kept_inference,) = await storing.inferences(model, 1, NOW)
    erasure = await storing.request(*doomed)
    async with storing.engine.connect() as connection:
        assert await find_scopes(connection, model, doomed[0].uid) == {"inference"}
        assert await find_scopes(connection, model, kept_inference.uid) == set()
        assert [
            unfinished.id for unfinished in await list_unfinished(connection, failed=False)
        ] == [erasure.id]
    assert erasure.state == "pending"
    assert await storing.eraser.finish(erasure) == "deleted"
    assert await storing.stored() == {kept_inference.uid}
    assert storing.objects() == {key.key for key in kept_inference.objects}
    done = await storing.reload(erasure)
    assert (done.inferences, done.objects, done.error) == (25, 75, None)
    assert done.finished_at is not None


async def test_a_shared_object_goes_with_the_last_that_points_to_it(storing: Storing) -> None:
    model = await storing.model()
    first = await storing.foreign(model, ago(days=2), "shared", "answer-1", None)
    second = await storing.foreign(model, ago(days=1), "shared", "answer-2", None)
    await storing.erase(first)
    assert storing.objects() == {"shared", "answer-2"}
    await storing.erase(second)
    assert storing.objects() == set()
    assert await storing.rows() == {}
    inference = await storing.foreign(model, ago(days=1), "both", "both", None)
    await storing.erase(inference, scope="input")
    assert storing.objects() == {"both"}
    await storing.erase(inference)
    assert storing.objects() == set()


async def test_a_stranger_that_points_to_a_capture_does_not_take_it_along(storing: Storing) -> None:
    model, (owner,) = await storing.begin(1, ago(days=1))
    names = [key.key for key in owner.objects]
    stranger = await storing.foreign(model, ago(hours=1), *names)
    await storing.erase(stranger)
    assert storing.objects() == set(names)
    stranger = await storing.foreign(model, ago(hours=1), *names)
    await storing.erase(owner)
    assert storing.objects() == set(names)  # the stranger's reference keeps them now
    await storing.erase(stranger)
    assert storing.objects() == set()


async def test_keeps_a_capture_whose_producer_uses_its_own_clock(storing: Storing) -> None:
    model, (inference,) = await storing.begin(1, ago(hours=1), clock=timedelta(hours=-9))
    names = [key.key for key in inference.objects]
    capture = names[0].split("/")[-2]
    # the same capture as it might lie under another day, to hide whose it is
    other = f"p/model/2024/01/01/00/{capture}/data"
    stranger = await storing.foreign(model, ago(hours=1), *names[:2], other)
    await storing.erase(stranger)
    assert storing.objects() == set(names)


async def test_nor_does_an_event_of_another_model_that_gives_the_same_capture_id(
    storing: Storing,
) -> None:
    (owner,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    names = [key.key for key in owner.objects]
    capture = UUID(names[0].split("/")[-2])
    other = await storing.model("other")
    stranger = await storing.foreign(other, ago(hours=1), *names, capture=capture)
    await storing.erase(stranger, scope="input")
    await storing.erase(stranger)
    assert storing.objects() == set(names)
    assert all(b"request" in storing.blobs.get(key, limit=1000) for key in owner.objects[2:])
    await storing.erase(owner)
    assert storing.objects() == set()


async def test_erases_late_arrivals_without_storing_them(storing: Storing) -> None:
    model, (late,) = await storing.begin(1, ago(days=9))
    async with storing.engine.begin() as connection:
        data, response, metadata = (str(key) for key in late.objects)
        for table in await storing.rows():
            await connection.exec_driver_sql(f"DELETE FROM {table}")
        arrival = (model, late.uid, "inference", data, response, metadata, None)
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
        # the same once more: redelivered before it was worked off
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
    (queued,) = await storing.transact(list_unfinished, failed=False)
    assert await storing.transact(pending_deletions.find_erased, [(model, late.uid)])
    assert await storing.eraser.finish(queued) == "deleted"
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert not await storing.transact(pending_deletions.find_erased, [(model, late.uid)])


async def test_the_next_batch_does_not_spare_objects_being_erased(
    storing: Storing, settings: RetentionSettings
) -> None:
    """A hold on it comes while its objects go: it was claimed, and a later one shares a blob."""
    model = await storing.model()
    first = await storing.foreign(model, ago(days=2), "a", "shared", None)
    second = await storing.foreign(model, ago(days=1), "b", "shared", None)
    erasure = await storing.request(first, second)
    loop, calls, placed = asyncio.get_running_loop(), 0, []

    def tell(_: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            placed.append(asyncio.run_coroutine_threadsafe(hold(), loop).result(300))

    async def hold() -> Placement:
        placement = await storing.hold(model, None, first.uid)
        # the second batch is claimed while the first is at its objects
        query = "SELECT count(*) FROM erasing WHERE claimed_at IS NOT NULL"
        await until(lambda: storing.scalar(query), lambda count: count == 2)
        return placement

    with Watched(settings) as blobs:
        blobs.tell = tell
        state = await storing.make_eraser(blobs, batch=1).finish(erasure)
    assert first.uid in {claim.uid for claim in placed[0].claimed}
    assert state == "deleted"
    assert (await storing.reload(erasure)).inferences == 2
    assert (await storing.stored(), storing.objects()) == (set(), set())
    assert await _find_marked(storing.engine) == set()


class _Beside(Blobs):
    """Deletes the first batch when the versions of the next were listed."""

    listed = 0

    def list_versions(self, keys: Iterable[StorageKey]) -> Listed:
        versions = super().list_versions(keys)
        self.listed += 1
        if self.listed == 2:
            self.next_is_listed.set()
        return versions

    def delete_objects(self, keys: Iterable[StorageKey], listed: Listed | None = None) -> Deleted:
        assert self.next_is_listed.wait(180)
        return super().delete_objects(keys, listed)

    def __enter__(self) -> "_Beside":
        self.next_is_listed = Event()
        return self


async def test_versions_of_the_next_batch_are_listed_while_objects_go(
    storing: Storing, settings: RetentionSettings, minio_server: S3
) -> None:
    minio_server.client().set_bucket_versioning(storing.bucket, VersioningConfig(ENABLED))
    model = await storing.model()
    erasure = await storing.request(*await storing.inferences(model, 3, ago(days=1)))
    with _Beside(settings) as blobs:
        state = await storing.make_eraser(blobs, batch=1).finish(erasure)
    assert state == "deleted"
    assert (await storing.stored(), storing.objects()) == (set(), set())
    assert (await storing.reload(erasure)).versions == 9


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
        await object_claims.record_claims(connection, erasure.id, page)


@pytest.mark.parametrize("part", PARTS)
async def test_deletes_a_part_with_its_last_sharer_unless_held(
    storing: Storing, part: ErasureScope
) -> None:
    model, (owner,) = await storing.begin(1, ago(days=1))
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


async def test_takes_a_part_that_the_owner_loses_too_unless_it_is_held(storing: Storing) -> None:
    model = await storing.model()
    for part in PARTS:
        (owner,) = await storing.inferences(model, 1, ago(days=1))
        shared = owner.objects[PARTS[part]]
        stranger = await store_sharer(storing, model, shared, part, 1)
        await storing.erase(owner, stranger, scope=part)
        assert shared.key not in storing.objects(), part
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


async def test_bytes_are_those_of_inputs_that_went(storing: Storing) -> None:
    _, (owner,) = await storing.begin(1, ago(days=1))
    await storing.execute(inference.update().values(data_size=7))
    counted = []
    scopes: list[ErasureScope] = ["response", "input", "inference"]
    for scope in scopes:
        erasure = await storing.request(owner, scope=scope)
        assert await storing.eraser.finish(erasure) == "deleted"
        counted.append((scope, (await storing.reload(erasure)).bytes))
    assert dict(counted) == {"response": 0, "input": 7, "inference": 0}


async def test_an_input_that_is_the_owners_answer_too_stays(storing: Storing) -> None:
    model, (owner,) = await storing.begin(1, ago(days=1))
    shared = owner.objects[1]
    twice = {"data_storage_key": str(shared)}
    await storing.execute(inference.update().values(twice))
    stranger = await store_sharer(storing, model, shared, "input", 1)
    await storing.erase(owner, scope="input")
    await storing.erase(stranger)
    assert storing.objects() == {key.key for key in owner.objects}


async def find_metadata_key(engine: AsyncEngine, stored: Stored) -> StorageKey:
    query = select(inference.c.metadata_storage_key).where(inference.c.uid == stored.uid)
    return parse_stored(await scalar(engine, query) or "")


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
        await object_claims.claim_objects(connection, page)
        await rows.reserve_keys(connection, page, storing.bucket)
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


async def test_deletes_the_request_with_the_last_that_shares_it_or_its_blob(
    storing: Storing,
) -> None:
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
    owner, stranger, blob = await store_shared(storing, model)
    await storing.erase(owner, scope="input")
    await storing.erase(owner)
    assert storing.objects() == {blob.key}
    await storing.erase(stranger)
    assert storing.objects() == set()


async def request_by_ids(engine: AsyncEngine, *those: Stored) -> Erasure:
    ids = describe_ids([f"uid:{stored.uid}" for stored in those])
    models, at = [those[0].model], datetime.now(UTC)
    return await transact(
        engine, request_erasure, models=models, criteria=ids, by="someone", id=uuid4(), at=at
    )


async def count_marks(engine: AsyncEngine, erasure: Erasure) -> int:
    query = select(func.count()).select_from(erasing).where(erasing.c.erasure == erasure.id)
    return int(await scalar(engine, query) or 0)


async def test_inferences_of_two_erasures_are_counted_once(storing: Storing, mark: Mark) -> None:
    _, both = await storing.begin(10, ago(days=1))
    first, second = (
        await request_by_ids(storing.engine, *both),
        await request_by_ids(storing.engine, *both),
    )
    assert await mark(first) == await mark(second) == "all"
    assert await storing.eraser.finish(second) == "deleted"
    assert await storing.stored() == set()
    assert await storing.eraser.finish(first) == "deleted"
    assert await storing.rows() == {}
    assert (
        (await storing.reload(first)).inferences == (await storing.reload(second)).inferences == 10
    )
    assert (await count_against_accounting(storing.engine, ""))["erased"] == 10


async def test_both_erasures_report_what_a_hold_keeps(storing: Storing, mark: Mark) -> None:
    model, both = await storing.begin(3, ago(days=1))
    first, second = (
        await request_by_ids(storing.engine, *both),
        await request_by_ids(storing.engine, *both),
    )
    assert await mark(first) == await mark(second) == "all"
    await storing.hold(model, None, both[0].uid)
    assert await storing.eraser.finish(first) == "partly_held"
    assert await storing.eraser.finish(second) == "partly_held"
    assert [(await storing.reload(erasure)).held for erasure in (first, second)] == [1, 1]
    assert await storing.stored() == {both[0].uid}


async def test_takes_inferences_in_a_span_that_is_closing(storing: Storing, mark: Mark) -> None:
    _, closing = await storing.begin(3, ago(days=90))
    await _leave_closing_span(storing.engine, closing[0])
    erasure = await request_by_ids(storing.engine, *closing)
    assert await mark(erasure) == "all"
    assert await count_marks(storing.engine, erasure) == 2
    assert await storing.eraser.finish(erasure) == "deleted"
    assert await storing.rows() == {}


async def _leave_closing_span(engine: AsyncEngine, gone: Stored) -> TimePartition:
    """Leave a span as a policy's run that could not go on does: closed, one of the parents gone."""
    async with engine.begin() as connection:
        span = (await connection.execute(select(partition_span))).one()
        closed = {"model": gone.model, "lo": span.lo, "hi": span.hi}
        await connection.execute(insert(erased_span).values(closed))
        await pending_deletions.add_batch(connection, gone.model, [gone.uid])
        await connection.execute(partition_span.update().values(state="dropping"))
        await connection.execute(inference.delete().where(inference.c.uid == gone.uid))
    return TimePartition(span.lo, span.hi, span.name)
