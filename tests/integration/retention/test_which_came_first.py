"""Whether a hold or an erasure came first is told by one clock, that of Postgres."""

from datetime import datetime
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Begun, Erasure, marking
from inference_store.inference.events import StorageKey
from inference_store.retention.eraser import Eraser

from .holding import place
from .stored import Storing, ago


async def replayed(storing: Storing, model: int, *, at: datetime) -> Erasure:
    """An erasure of something that is not stored, as its entry of the ledger makes it."""
    key = StorageKey(storing.bucket, "late")
    storing.blobs.put(key, b"x", content_type="application/json")
    begun = Begun(uuid4(), "request", "inference", requested_by="someone")
    row = (storing.uid(ago(days=1)), str(key), None, None, None)
    async with storing.engine.begin() as connection:
        batch = await marking.entry(connection, begun, model, [row])
        await marking.apply(connection, batch, at, "someone")
        found = await erasures.find(connection, begun.id)
    assert found is not None
    return found


async def test_a_hold_that_came_after_an_erasure_whose_clock_is_ahead_keeps_what_is_not_known(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    one = await replayed(storing, model, at=ago(hours=-1))
    await place(engine, model, "ok")
    assert await eraser.finish(one) == "partly_held"
    assert storing.objects() == {"late"}


async def test_and_one_that_came_before_an_erasure_whose_clock_is_behind_has_had_its_say(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    model = await storing.model()
    await place(engine, model, "ok")
    one = await replayed(storing, model, at=ago(hours=1))
    assert await eraser.finish(one) == "deleted"
    assert storing.objects() == set()


async def test_what_arrived_is_compared_by_when_holds_were_asked(
    storing: Storing, engine: AsyncEngine, eraser: Eraser
) -> None:
    """Its transaction began before the hold, and asked it: it came behind it through the gate."""
    model = await storing.model()
    arrival = (model, storing.uid(ago(days=1)), "inference", None, None, None, None)
    async with engine.begin() as connection:
        assert await erasures.unfinished(connection, failed=False) == []
        await place(engine, model, "ok")
        await erasures.enqueue_arrivals(connection, [arrival], cause="expired_arrival")
    async with engine.connect() as connection:
        (queued,) = await erasures.unfinished(connection, failed=False)
    assert await eraser.finish(queued) == "deleted"
