"""One clock, that of Postgres, tells whether a hold or an erasure came first."""

from datetime import datetime
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.mark.arrivals import enqueue_arrivals
from inference_store.erasure.mark.batches import describe_entry, mark_batch
from inference_store.erasure.progress.erasure import (
    Erasure,
    NewErasure,
    find_erasure,
    list_unfinished,
)
from inference_store.inference.events import StorageKey
from inference_store.retention.eraser import Eraser

from .holding import place_hold
from .stored import Storing, ago


async def replay_erasure(storing: Storing, model: int, *, at: datetime) -> Erasure:
    """An erasure of something that is not stored, as its entry of the ledger makes it."""
    key = StorageKey(storing.bucket, "late")
    storing.blobs.put(key, b"x", content_type="application/json")
    begun = NewErasure(uuid4(), "request", "inference", requested_by="someone")
    row = (storing.uid(ago(days=1)), str(key), None, None, None)
    async with storing.engine.begin() as connection:
        batch = await describe_entry(connection, begun, model, [row])
        await mark_batch(connection, batch, at, "someone")
        erasure = await find_erasure(connection, begun.id)
    assert erasure is not None
    return erasure


async def test_a_hold_that_came_after_an_erasure_whose_clock_is_ahead_keeps_what_is_not_known(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    erasure = await replay_erasure(storing, model, at=ago(hours=-1))
    await place_hold(engine, model, "ok")
    assert await eraser.finish(erasure) == "partly_held"
    assert storing.objects() == {"late"}


async def test_a_hold_placed_before_an_erasure_whose_clock_is_behind_does_not_count_again(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    await place_hold(engine, model, "ok")
    erasure = await replay_erasure(storing, model, at=ago(hours=1))
    assert await eraser.finish(erasure) == "deleted"
    assert storing.objects() == set()


async def test_compares_arrivals_with_the_time_holds_were_evaluated(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    """Its transaction began before the hold, and asked it: it came behind it through the fence."""
    model = await storing.model()
    arrival = (model, storing.uid(ago(days=1)), "inference", None, None, None, None)
    async with engine.begin() as connection:
        assert await list_unfinished(connection, failed=False) == []
        await place_hold(engine, model, "ok")
        await enqueue_arrivals(connection, [arrival], cause="expired_arrival")
    async with engine.connect() as connection:
        (queued,) = await list_unfinished(connection, failed=False)
    assert await eraser.finish(queued) == "deleted"
