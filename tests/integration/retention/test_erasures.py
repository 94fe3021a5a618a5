"""Erasing on request, what arrived too late, and objects that several inferences share."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.fence import fence_shared
from inference_store.erasure.mark import tombstones
from inference_store.erasure.mark.arrivals import enqueue_arrivals
from inference_store.erasure.mark.pending_deletions import find_claimed, find_scopes
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress.erasure import Erasure, find_erasure, list_unfinished
from inference_store.retention.eraser import Eraser
from tests.integration import erasure_requests

from .stored import NOW, Stored, Storing, ago


async def request(
    engine: AsyncEngine, *those: Stored, scope: ErasureScope = "inference"
) -> Erasure:
    async with engine.begin() as connection:
        uids = [inference.uid for inference in those]
        return await erasure_requests.request_erasure(
            connection, model=those[0].model, uids=uids, scope=scope
        )


async def reload_erasure(engine: AsyncEngine, erasure: Erasure) -> Erasure:
    async with engine.connect() as connection:
        again = await find_erasure(connection, erasure.id)
    assert again is not None
    return again


async def test_a_request_marks_at_once_and_is_worked_off(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    doomed = await storing.inferences(model, 25, ago(days=1))
    (kept_inference,) = await storing.inferences(model, 1, NOW)
    erasure = await request(engine, *doomed)
    async with engine.connect() as connection:
        assert await find_scopes(connection, model, doomed[0].uid) == {"inference"}
        assert await find_scopes(connection, model, kept_inference.uid) == set()
        assert [
            unfinished.id for unfinished in await list_unfinished(connection, failed=False)
        ] == [erasure.id]
    assert erasure.state == "pending"
    assert await eraser.finish(erasure) == "deleted"
    assert await storing.stored() == {kept_inference.uid}
    assert storing.objects() == {key.key for key in kept_inference.objects}
    done = await reload_erasure(engine, erasure)
    assert (done.inferences, done.objects, done.error) == (25, 75, None)
    assert done.finished_at is not None


async def test_a_shared_object_goes_with_the_last_that_points_to_it(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    first = await storing.foreign(model, ago(days=2), "shared", "answer-1", None)
    second = await storing.foreign(model, ago(days=1), "shared", "answer-2", None)
    await eraser.finish(await request(engine, first))
    assert storing.objects() == {"shared", "answer-2"}
    await eraser.finish(await request(engine, second))
    assert storing.objects() == set()
    assert await storing.rows() == {}


async def test_two_that_share_and_go_together_leave_nothing(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    both = [await storing.foreign(model, ago(days=n), "shared", None, "shared") for n in (1, 2)]
    await eraser.finish(await request(engine, *both))
    assert storing.objects() == set()
    assert await storing.rows() == {}


async def test_a_stranger_that_points_to_anothers_capture_does_not_take_it_along(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    (owner,) = await storing.inferences(model, 1, ago(days=1))
    names = [key.key for key in owner.objects]
    stranger = await storing.foreign(model, ago(hours=1), *names)
    await eraser.finish(await request(engine, stranger))
    assert storing.objects() == set(names)
    stranger = await storing.foreign(model, ago(hours=1), *names)
    await eraser.finish(await request(engine, owner))
    assert storing.objects() == set(names)  # the stranger's reference keeps them now
    await eraser.finish(await request(engine, stranger))
    assert storing.objects() == set()


async def test_keeps_a_capture_whose_producer_uses_its_own_clock(
    storing: Storing, eraser: Eraser, engine: AsyncEngine
) -> None:
    model = await storing.model()
    (inference,) = await storing.inferences(model, 1, ago(hours=1), clock=timedelta(hours=-9))
    names = [key.key for key in inference.objects]
    capture = names[0].split("/")[-2]
    # the same capture as it might lie under another day, to hide whose it is
    other = f"p/model/2024/01/01/00/{capture}/data"
    stranger = await storing.foreign(model, ago(hours=1), *names[:2], other)
    await eraser.finish(await request(engine, stranger))
    assert storing.objects() == set(names)


async def test_nor_does_an_event_of_another_model_that_gives_the_same_capture_id(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    (owner,) = await storing.inferences(await storing.model(), 1, ago(days=1))
    names = [key.key for key in owner.objects]
    capture = UUID(names[0].split("/")[-2])
    other = await storing.model("other")
    stranger = await storing.foreign(other, ago(hours=1), *names, capture=capture)
    await eraser.finish(await request(engine, stranger, scope="input"))
    await eraser.finish(await request(engine, stranger))
    assert storing.objects() == set(names)
    assert all(b"request" in storing.blobs.get(key, limit=1000) for key in owner.objects[2:])
    await eraser.finish(await request(engine, owner))
    assert storing.objects() == set()


async def test_an_input_that_is_the_answer_too_stays(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), "both", "both", None)
    await eraser.finish(await request(engine, inference, scope="input"))
    assert storing.objects() == {"both"}
    await eraser.finish(await request(engine, inference))
    assert storing.objects() == set()


async def test_erases_late_arrivals_without_storing_them(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    (late,) = await storing.inferences(model, 1, ago(days=9))
    async with engine.begin() as connection:
        data, response, metadata = (str(key) for key in late.objects)
        for table in await storing.rows():
            await connection.exec_driver_sql(f"DELETE FROM {table}")
        arrival = (model, late.uid, "inference", data, response, metadata, None)
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
        # the same once more: redelivered before it was worked off
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
    async with engine.connect() as connection:
        (queued,) = await list_unfinished(connection, failed=False)
        assert await tombstones.find_erased(connection, [(model, late.uid, ago(days=9))])
    assert await eraser.finish(queued) == "deleted"
    assert storing.objects() == set()
    assert await storing.rows() == {}
    async with engine.connect() as connection:
        assert not await tombstones.find_erased(connection, [(model, late.uid, ago(days=9))])


async def test_the_claimed_keys_are_those_that_go(storing: Storing, engine: AsyncEngine) -> None:
    model = await storing.model()
    inference = await storing.foreign(model, ago(days=1), "data", "response", "metadata")
    keys = [str(key) for key in inference.objects]
    await request(engine, inference, scope="input")
    async with engine.begin() as connection:
        await fence_shared(connection)
        assert await find_claimed(connection, [*keys, "s3://other/key"]) == {keys[0]}
    await request(engine, inference)
    async with engine.begin() as connection:
        assert await find_claimed(connection, keys) == set(keys)
        assert await find_claimed(connection, []) == set()
