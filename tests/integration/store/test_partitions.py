import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store import partitions
from inference_store.store.events import uid_of
from inference_store.store.tables import PARTITIONED, inference

NOW = datetime.now(UTC)


async def leaves(engine: AsyncEngine) -> int:
    query = text(
        "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE relkind = 'r'"
    )
    async with engine.connect() as connection:
        return int(await connection.scalar(query) or 0)


async def test_a_missing_span_is_made_once_however_many_ask(engine: AsyncEngine) -> None:
    instants = [NOW, NOW - timedelta(days=400), NOW - timedelta(days=1)]
    made = await asyncio.gather(
        *(partitions.make_missing(engine, instants, target=5_000_000) for _ in range(4))
    )
    assert all(spans.find(at) is not None for spans in made for at in instants)
    assert await leaves(engine) == 3 * len(PARTITIONED)


async def test_spans_never_overlap(engine: AsyncEngine) -> None:
    for days in (0, 90, 3, 61, 62, 1, 60, 89):
        known = await partitions.make_missing(engine, [NOW - timedelta(days=days)], target=1000)
        assert known.find(NOW - timedelta(days=days)) is not None
    async with engine.connect() as connection:
        spans = await partitions.spans(connection)
    assert spans == sorted(spans, reverse=True)
    assert all(older.hi <= newer.lo for newer, older in pairwise(spans))


async def test_the_bounds_of_an_old_span_are_those_of_its_gap(engine: AsyncEngine) -> None:
    old = NOW - timedelta(days=100)
    await partitions.make_missing(engine, [old], target=1000)
    known = await partitions.make_missing(engine, [old], target=1000)
    span = known.find(old)
    assert span is not None
    assert span.hi - span.lo == timedelta(days=28)


async def test_a_dropped_span_is_gone_and_dropping_again_is_harmless(engine: AsyncEngine) -> None:
    known = await partitions.make_missing(engine, [NOW], target=1000)
    span = known.find(NOW)
    assert span is not None
    await partitions.drop(engine, span)
    await partitions.drop(engine, span)
    assert await leaves(engine) == 0
    async with engine.connect() as connection:
        assert await partitions.spans(connection) == []


@pytest.mark.parametrize(
    "at", [NOW, datetime(2000, 1, 1, tzinfo=UTC), datetime(2199, 1, 1, tzinfo=UTC)]
)
async def test_any_time_that_an_event_may_have_has_a_place(
    engine: AsyncEngine, at: datetime
) -> None:
    known = await partitions.make_missing(engine, [at], target=5_000_000)
    assert known.find(at) is not None


async def test_small_old_spans_become_one_with_all_rows_and_indexes(engine: AsyncEngine) -> None:
    instants = [NOW - timedelta(days=70 + 28 * n) for n in range(3)]
    await partitions.make_missing(engine, [*instants, NOW], target=5_000_000)
    async with engine.begin() as connection:
        for number, at in enumerate(instants):
            values = {"model": 1, "uid": uid_of(at, str(number)), "received_at": at}
            await connection.execute(inference.insert().values(inference_id="x", **values))
    merged = await partitions.merge(engine, target=1000, older_than=timedelta(days=2))
    assert merged == 2
    assert await leaves(engine) == 2 * len(PARTITIONED)
    async with engine.connect() as connection:
        assert len(await partitions.spans(connection)) == 2
        assert len((await connection.execute(select(inference.c.uid))).all()) == 3
        attached = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
        assert await connection.scalar(text(attached)) == 0
    assert await partitions.merge(engine, target=1000, older_than=timedelta(days=2)) == 0
    # the place is still there for late events
    known = await partitions.make_missing(engine, instants, target=5_000_000)
    assert len({known.find(at) for at in instants}) == 1
