"""What another erasure has marked, or lies in a span that is closing, is of an erasure too."""

import asyncio

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, chosen
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.mark import marks
from inference_store.index.partitions import Span
from inference_store.index.tables import erased_span, erasing, inference, partition_span, prediction
from inference_store.objects import Blobs
from inference_store.operations.reconcile.counts import count_against_accounting
from inference_store.retention.dropping import reopen_span
from inference_store.retention.eraser import Eraser
from inference_store.retention.marker import Marker
from inference_store.retention.quarantine import QuarantineEraser
from tests.polling import until

from .conftest import NoPace
from .holding import place
from .stored import Stored, Storing, ago
from .test_erasures import found


@pytest.fixture
def marker(engine: AsyncEngine, blobs: Blobs) -> Marker:
    ledger = Ledger(engine, blobs, prefix="ledger/")
    return Marker(engine, ledger, QuarantineEraser(engine, blobs, NoPace()), NoPace(), batch=7)


async def asked(engine: AsyncEngine, *those: Stored) -> Erasure:
    ids = chosen.by_ids([f"uid:{one.uid}" for one in those])
    async with engine.begin() as connection:
        return await erasures.ask(connection, models=[those[0].model], asked=ids, by="someone")


async def marks_of(engine: AsyncEngine, one: Erasure) -> int:
    query = select(func.count()).select_from(erasing).where(erasing.c.erasure == one.id)
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


async def test_it_takes_what_another_had_marked_that_is_cancelled(
    storing: Storing, engine: AsyncEngine, marker: Marker, eraser: Eraser
) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 10, ago(days=1))
    (first_alone,) = await storing.inferences(model, 1, ago(days=2))
    first, second = await asked(engine, *both, first_alone), await asked(engine, *both)
    assert await marker.mark(first) == "all"
    assert await marker.mark(second) == "all"
    async with engine.begin() as connection:
        await erasures.cancel(connection, first.id)
    assert await marker.mark(first) == "over"
    assert (await marks_of(engine, first), await marks_of(engine, second)) == (0, 10)
    assert await eraser.finish(second) == "deleted"
    assert await storing.stored() == {first_alone.uid}
    assert storing.objects() == {key.key for key in first_alone.objects}
    assert (await found(engine, second)).inferences == 10


async def test_what_two_were_asked_for_is_gone_when_either_ends_and_counted_once_by_the_books(
    storing: Storing, engine: AsyncEngine, marker: Marker, eraser: Eraser
) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 10, ago(days=1))
    one, other = await asked(engine, *both), await asked(engine, *both)
    assert await marker.mark(one) == await marker.mark(other) == "all"
    assert await eraser.finish(other) == "deleted"
    assert await storing.stored() == set()
    assert await eraser.finish(one) == "deleted"
    assert await storing.rows() == {}
    assert (await found(engine, one)).inferences == (await found(engine, other)).inferences == 10
    assert (await count_against_accounting(engine))["erased"] == 10


async def test_what_a_hold_keeps_of_both_is_told_by_both(
    storing: Storing, engine: AsyncEngine, marker: Marker, eraser: Eraser
) -> None:
    model = await storing.model()
    both = await storing.inferences(model, 3, ago(days=1))
    one, other = await asked(engine, *both), await asked(engine, *both)
    assert await marker.mark(one) == await marker.mark(other) == "all"
    await place(engine, model, None, both[0].uid)
    assert await eraser.finish(one) == "partly_held"
    assert await eraser.finish(other) == "partly_held"
    assert [(await found(engine, each)).held for each in (one, other)] == [1, 1]
    assert await storing.stored() == {both[0].uid}


async def test_it_takes_what_lies_in_a_span_that_is_closing(
    storing: Storing, engine: AsyncEngine, marker: Marker, eraser: Eraser
) -> None:
    model = await storing.model()
    closing = await storing.inferences(model, 3, ago(days=90))
    await _closing(engine, closing[0])
    one = await asked(engine, *closing)
    assert await marker.mark(one) == "all"
    assert await marks_of(engine, one) == 2
    assert await eraser.finish(one) == "deleted"
    assert await storing.rows() == {}


async def test_a_span_is_opened_again_with_the_gate_held_for_a_moment_only(
    storing: Storing, engine: AsyncEngine
) -> None:
    """What grows with the span is done before: the gate holds every writer."""
    model = await storing.model()
    some = await storing.inferences(model, 3, ago(days=90))
    span = await _closing(engine, some[0])

    async def orphans() -> int:
        query = select(func.count()).where(prediction.c.uid == some[0].uid)
        async with engine.connect() as connection:
            return int(await connection.scalar(query) or 0)

    async with engine.begin() as writer:
        await marks.gate_shared(writer)
        opening = asyncio.create_task(reopen_span(engine, span, NoPace()))
        await until(orphans, lambda left: left == 0, seconds=30)
    await opening
    assert await storing.scalar("SELECT state FROM partition_span") == "open"
    assert await storing.scalar("SELECT count(*) FROM prediction") == 2


async def _closing(engine: AsyncEngine, gone: Stored) -> Span:
    """As a policy's run leaves a span that could not go on: closed, one of the parents gone."""
    async with engine.begin() as connection:
        span = (await connection.execute(select(partition_span))).one()
        closed = {"model": gone.model, "lo": span.lo, "hi": span.hi}
        await connection.execute(insert(erased_span).values(closed))
        await connection.execute(partition_span.update().values(state="dropping"))
        await connection.execute(inference.delete().where(inference.c.uid == gone.uid))
    return Span(span.lo, span.hi, span.name)
