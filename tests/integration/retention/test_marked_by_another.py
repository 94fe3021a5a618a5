"""An erasure takes inferences that another has marked or that lie in a span that is closing."""

import asyncio

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure.fence import fence_shared
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.progress.erasure import Erasure
from inference_store.erasure.request.cancellation import request_cancellation
from inference_store.erasure.request.criteria import describe_ids
from inference_store.erasure.request.requests import request_erasure
from inference_store.index.partitions import TimePartition
from inference_store.index.tables import erased_span, erasing, inference, partition_span, prediction
from inference_store.objects import Blobs
from inference_store.operations.reconcile.counts import count_against_accounting
from inference_store.retention.dropping import reopen_span
from inference_store.retention.marker import Marker
from inference_store.retention.quarantine import QuarantineEraser
from tests.polling import until

from .conftest import NoPace
from .stored import Stored, Storing, ago


@pytest.fixture
def marker(engine: AsyncEngine, blobs: Blobs) -> Marker:
    ledger = Ledger(engine, blobs, prefix="ledger/")
    return Marker(engine, ledger, QuarantineEraser(engine, blobs, NoPace()), NoPace(), batch=7)


async def request_by_ids(engine: AsyncEngine, *those: Stored) -> Erasure:
    ids = describe_ids([f"uid:{stored.uid}" for stored in those])
    async with engine.begin() as connection:
        return await request_erasure(
            connection, models=[those[0].model], criteria=ids, by="someone"
        )


async def count_marks(engine: AsyncEngine, erasure: Erasure) -> int:
    query = select(func.count()).select_from(erasing).where(erasing.c.erasure == erasure.id)
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


async def test_takes_inferences_marked_by_a_cancelled_erasure(
    storing: Storing, marker: Marker
) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 10, ago(days=1))
    (first_alone,) = await storing.inferences(model, 1, ago(days=2))
    first, second = (
        await request_by_ids(storing.engine, *both, first_alone),
        await request_by_ids(storing.engine, *both),
    )
    assert await marker.mark(first) == "all"
    assert await marker.mark(second) == "all"
    await storing.transact(request_cancellation, first.id)
    assert await marker.mark(first) == "over"
    assert (
        await count_marks(storing.engine, first),
        await count_marks(storing.engine, second),
    ) == (0, 10)
    assert await storing.eraser.finish(second) == "deleted"
    assert await storing.stored() == {first_alone.uid}
    assert storing.objects() == {key.key for key in first_alone.objects}
    assert (await storing.reload(second)).inferences == 10


async def test_inferences_of_two_erasures_are_counted_once(
    storing: Storing, marker: Marker
) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 10, ago(days=1))
    first, second = (
        await request_by_ids(storing.engine, *both),
        await request_by_ids(storing.engine, *both),
    )
    assert await marker.mark(first) == await marker.mark(second) == "all"
    assert await storing.eraser.finish(second) == "deleted"
    assert await storing.stored() == set()
    assert await storing.eraser.finish(first) == "deleted"
    assert await storing.rows() == {}
    assert (
        (await storing.reload(first)).inferences == (await storing.reload(second)).inferences == 10
    )
    assert (await count_against_accounting(storing.engine))["erased"] == 10


async def test_both_erasures_report_what_a_hold_keeps(storing: Storing, marker: Marker) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 3, ago(days=1))
    first, second = (
        await request_by_ids(storing.engine, *both),
        await request_by_ids(storing.engine, *both),
    )
    assert await marker.mark(first) == await marker.mark(second) == "all"
    await storing.hold(model, None, both[0].uid)
    assert await storing.eraser.finish(first) == "partly_held"
    assert await storing.eraser.finish(second) == "partly_held"
    assert [(await storing.reload(erasure)).held for erasure in (first, second)] == [1, 1]
    assert await storing.stored() == {both[0].uid}


async def test_takes_inferences_in_a_span_that_is_closing(storing: Storing, marker: Marker) -> None:
    model = await storing.model()
    closing = await storing.inferences(model, 3, ago(days=90))
    await _leave_closing_span(storing.engine, closing[0])
    erasure = await request_by_ids(storing.engine, *closing)
    assert await marker.mark(erasure) == "all"
    assert await count_marks(storing.engine, erasure) == 2
    assert await storing.eraser.finish(erasure) == "deleted"
    assert await storing.rows() == {}


async def test_a_span_is_opened_again_with_the_gate_held_for_a_moment_only(
    storing: Storing,
) -> None:
    """The work that grows with the span is done before: the fence holds every writer."""
    model = await storing.model()
    some = await storing.inferences(model, 3, ago(days=90))
    span = await _leave_closing_span(storing.engine, some[0])

    async def orphans() -> int:
        query = select(func.count()).where(prediction.c.uid == some[0].uid)
        return int(await storing.scalar(query) or 0)

    async with storing.engine.begin() as writer:
        await fence_shared(writer)
        opening = asyncio.create_task(reopen_span(storing.engine, span, NoPace()))
        await until(orphans, lambda count: count == 0)
    await opening
    assert await storing.scalar("SELECT state FROM partition_span") == "open"
    assert await storing.scalar("SELECT count(*) FROM prediction") == 2


async def _leave_closing_span(engine: AsyncEngine, gone: Stored) -> TimePartition:
    """Leave a span as a policy's run that could not go on does: closed, one of the parents gone."""
    async with engine.begin() as connection:
        span = (await connection.execute(select(partition_span))).one()
        closed = {"model": gone.model, "lo": span.lo, "hi": span.hi}
        await connection.execute(insert(erased_span).values(closed))
        await connection.execute(partition_span.update().values(state="dropping"))
        await connection.execute(inference.delete().where(inference.c.uid == gone.uid))
    return TimePartition(span.lo, span.hi, span.name)
