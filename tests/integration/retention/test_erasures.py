"""Erasing on request, what arrived too late, and objects that several inferences share."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from threading import Event
from uuid import UUID

from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig

from inference_store.erasure.fence import fence_shared
from inference_store.erasure.holds.changes import Placement
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.arrivals import enqueue_arrivals
from inference_store.erasure.mark.pending_deletions import find_claimed, find_scopes
from inference_store.erasure.progress.erasure import list_unfinished
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs, Deleted, Listed
from inference_store.platform.settings import RetentionSettings
from tests.polling import until
from tests.servers.minio import S3

from .stored import NOW, Storing, ago
from .test_holds import Watched, _find_marked


async def test_a_request_marks_at_once_and_is_worked_off(storing: Storing) -> None:
    model = await storing.model()
    doomed = await storing.inferences(model, 25, ago(days=1))
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


async def test_two_that_share_and_go_together_leave_nothing(storing: Storing) -> None:
    model = await storing.model()
    both = [await storing.foreign(model, ago(days=n), "shared", None, "shared") for n in (1, 2)]
    await storing.erase(*both)
    assert storing.objects() == set()
    assert await storing.rows() == {}


async def test_a_stranger_that_points_to_anothers_capture_does_not_take_it_along(
    storing: Storing,
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
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
    model = await storing.model()
    (inference,) = await storing.inferences(model, 1, ago(hours=1), clock=timedelta(hours=-9))
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


async def test_an_input_that_is_the_answer_too_stays(storing: Storing) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), "both", "both", None)
    await storing.erase(inference, scope="input")
    assert storing.objects() == {"both"}
    await storing.erase(inference)
    assert storing.objects() == set()


async def test_erases_late_arrivals_without_storing_them(storing: Storing) -> None:
    model = await storing.model()
    (late,) = await storing.inferences(model, 1, ago(days=9))
    async with storing.engine.begin() as connection:
        data, response, metadata = (str(key) for key in late.objects)
        for table in await storing.rows():
            await connection.exec_driver_sql(f"DELETE FROM {table}")
        arrival = (model, late.uid, "inference", data, response, metadata, None)
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
        # the same once more: redelivered before it was worked off
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
    async with storing.engine.connect() as connection:
        (queued,) = await list_unfinished(connection, failed=False)
        assert await tombstones.find_erased(connection, [(model, late.uid, ago(days=9))])
    assert await storing.eraser.finish(queued) == "deleted"
    assert storing.objects() == set()
    assert await storing.rows() == {}
    assert not await storing.transact(tombstones.find_erased, [(model, late.uid, ago(days=9))])


async def test_the_claimed_keys_are_those_that_go(storing: Storing) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), "data", "response", "metadata")
    keys = [str(key) for key in inference.objects]
    await storing.request(inference, scope="input")
    async with storing.engine.begin() as connection:
        await fence_shared(connection)
        assert await find_claimed(connection, [*keys, "s3://other/key"]) == {keys[0]}
    await storing.request(inference)
    async with storing.engine.begin() as connection:
        assert await find_claimed(connection, keys) == set(keys)
        assert await find_claimed(connection, []) == set()


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
