"""The figures of the gauges agree with the tables, and show books that do not close."""

from datetime import UTC, datetime, time, timedelta
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, partitions
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.index.partitions import TimePartition, lock_catalogue
from inference_store.operations import figures

PARTITION = PartitionId("default", "events", 0, 0)


async def test_counts_books_that_do_not_close(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await accounting.open_partition(connection, PARTITION, first=0)
        outcomes = {Outcome.STORED: 7, Outcome.DEAD: 3}
        await accounting.move_offsets(
            connection, PARTITION, lo=0, hi=10, outcomes=outcomes, last=(9, b"x")
        )
        accounting_figures = await figures.read_accounting(connection)
        assert (
            accounting_figures.counts[Outcome.STORED],
            accounting_figures.counts[Outcome.DEAD],
        ) == (7, 3)
        assert (
            accounting_figures.open_partitions,
            accounting_figures.parked,
            accounting_figures.parked_oldest_seconds,
        ) == (0, 0, 0.0)
        await connection.execute(text("UPDATE kafka_partition SET stored = 8"))
        assert (await figures.read_accounting(connection)).open_partitions == 1


@pytest.mark.parametrize("gap", [False, True])
async def test_seconds_ahead_end_at_a_gap(engine: AsyncEngine, gap: bool) -> None:
    hour, now = timedelta(hours=1), datetime.now(UTC)
    second = now + (2 if gap else 1) * hour
    async with engine.begin() as connection:
        assert await figures.read_partitions(connection) == (0, 0.0)
        await lock_catalogue(connection)
        for lo in (now - hour, second):
            hi = now + hour if lo < now else lo + hour
            await partitions.create(connection, TimePartition.between(lo, hi))
        count, ahead_seconds = await figures.read_partitions(connection)
    assert count == 2
    assert ahead_seconds == pytest.approx(3600 if gap else 7200, abs=60)


@pytest.mark.parametrize(("clock", "count"), [("12:00", 2), ("23:25", 3)])
async def test_makes_the_next_span_an_hour_ahead(
    engine: AsyncEngine, clock: str, count: int
) -> None:
    """A span ends at midnight at the latest: close to it one more is made."""
    now = datetime.combine(datetime.now(UTC), time.fromisoformat(clock), UTC)
    make_ahead = partial(partitions.make_ahead, engine, target=1000, at=now)
    assert not await make_ahead()  # nothing is in use
    async with engine.begin() as connection:
        await lock_catalogue(connection)
        span = TimePartition.between(now - timedelta(hours=20), now + timedelta(minutes=30))
        await partitions.create(connection, span)
    assert await make_ahead()
    assert not await make_ahead()  # it is there
    async with engine.connect() as connection:
        assert (await figures.read_partitions(connection))[0] == count
