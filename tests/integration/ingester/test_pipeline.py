"""One ingester process and real servers: each published event is stored once."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial

import httpx
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import partitions
from inference_store.index.tables import inference, label, metadata_number, prediction
from inference_store.inference.events import DEAD_LETTER_REASONS
from tests.integration.ingester.conftest import RunningIngester, StartIngester, wait_for_counts
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.producer import capture
from tests.servers.marks import merged_partitions


@pytest.fixture
async def ingester(start_ingester: StartIngester) -> RunningIngester:
    return await start_ingester(partitions=3)


async def test_events_become_typed_rows_once(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    service, producer = ingester
    # Before any event the counters are zero: an alert also sees the first burst.
    metrics = (await asyncio.to_thread(httpx.get, f"{service.admin}/metrics", timeout=300)).text
    for reason in DEAD_LETTER_REASONS:
        assert f'inference_store_ingester_dead_letters_total{{reason="{reason}"}} 0.0' in metrics
    for server in ("kafka", "postgres", "object store"):
        assert f'inference_store_ingester_trouble_total{{server="{server}"}} 0.0' in metrics
    captures = [capture(number) for number in range(50)]
    await producer.produce(*captures)
    await producer.publish_all(item.event for item in captures[:20])
    await wait_for_counts(engine, stored=50, duplicate=20)
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(inference)) == 50
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 100
        # frame_number, exposure, camera_position.angle and .tilt
        assert await connection.scalar(select(func.count()).select_from(metadata_number)) == 200
        # The second prediction of each, the car, has the higher score.
        top = select(inference.c.top_score, label.c.name).distinct()
        top = top.join(label, label.c.label == inference.c.top_label)
        assert [tuple(row) for row in await connection.execute(top)] == [(0.5, "car")]


@merged_partitions
async def test_events_of_old_days_wait_for_the_merge_of_their_partitions(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    service, producer = ingester
    days = [datetime.now(UTC) - timedelta(days=70 + 28 * n) for n in range(2)]
    found = (await partitions.make_missing(engine, days, target=5_000_000)).find(days[0])
    assert found is not None
    merge = partial(partitions.merge, older_than=timedelta(days=2), lock_timeout="60s")
    async with engine.begin() as holder:
        # the last table of which the merge takes a lock before it copies
        await holder.execute(text(f"LOCK TABLE {found.tables[0]} IN ROW EXCLUSIVE MODE"))
        merging = asyncio.create_task(merge(engine, target=1000))
        await until(lambda: count_lock_waiters(engine), lambda waiters: waiters == 1)
        await producer.produce(*(capture(n, received_at=day) for n, day in enumerate(days)))
        await until(lambda: count_lock_waiters(engine), lambda waiters: waiters == 2)
    assert await merging == 1
    await wait_for_counts(engine, stored=2)
    assert "deadlock" not in service.text


async def test_unexpected_error_ends_the_process(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    service, producer = ingester
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE inference CASCADE"))
    await producer.produce(capture(1))
    code = await asyncio.to_thread(service.process.wait, 300)
    assert code == 1
