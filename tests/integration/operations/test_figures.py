"""The figures of the gauges are those of the tables; books that do not close are seen."""

from datetime import UTC, datetime, time, timedelta
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, partitions
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.partitions import Span, lock_catalogue
from inference_store.operations import figures

PLACE = PartitionId("default", "events", 0, 0)


async def test_books_that_do_not_close_are_counted(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.open_partition(connection, PLACE, first=0, began="first")
        outcomes = {Outcome.STORED: 7, Outcome.DEAD: 3}
        await accounting.move_offsets(
            connection, PLACE, lo=0, hi=10, outcomes=outcomes, last=(9, b"x")
        )
        found = await figures.read_accounting(connection)
        assert (found.counts[Outcome.STORED], found.counts[Outcome.DEAD]) == (7, 3)
        assert (found.open_partitions, found.parked, found.parked_oldest_seconds) == (0, 0, 0.0)
        await connection.execute(text("UPDATE kafka_partition SET stored = 8"))
        assert (await figures.read_accounting(connection)).open_partitions == 1


@pytest.mark.parametrize("gap", [False, True])
async def test_time_without_partitions_ends_what_is_ahead(engine: AsyncEngine, gap: bool) -> None:
    hour, now = timedelta(hours=1), datetime.now(UTC)
    second = now + (2 if gap else 1) * hour
    async with engine.begin() as connection:
        assert await figures.read_spans(connection) == figures.SpanFigures(0, 0.0)
        await lock_catalogue(connection)
        for lo in (now - hour, second):
            hi = now + hour if lo < now else lo + hour
            await partitions.create(connection, Span.between(lo, hi))
        found = await figures.read_spans(connection)
    assert found.spans == 2
    assert found.ahead_seconds == pytest.approx(3600 if gap else 7200, abs=60)


@pytest.mark.parametrize(("clock", "spans"), [("12:00", 2), ("23:25", 3)])
async def test_the_next_span_is_made_an_hour_ahead_and_not_before(
    engine: AsyncEngine, clock: str, spans: int
) -> None:
    """A span ends at midnight at the latest: where that is near, one more is made."""
    now = datetime.combine(datetime.now(UTC), time.fromisoformat(clock), UTC)
    make_ahead = partial(partitions.make_ahead, engine, target=1000, at=now)
    assert not await make_ahead()  # nothing is in use
    async with engine.begin() as connection:
        await lock_catalogue(connection)
        span = Span.between(now - timedelta(hours=20), now + timedelta(minutes=30))
        await partitions.create(connection, span)
    assert await make_ahead()
    assert not await make_ahead()  # it is there
    async with engine.connect() as connection:
        assert (await figures.read_spans(connection)).spans == spans
