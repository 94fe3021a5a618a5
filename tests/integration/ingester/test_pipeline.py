"""One ingester process and real servers: each published event is stored once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from inference_store.index.tables import inference, label, metadata_number, prediction
from tests.polling import until
from tests.producer import Producer, capture
from tests.servers.fixtures import MakeEnvironment
from tests.service_process import Service

RunningIngester = tuple[Service, Producer]


@pytest.fixture
async def ingester(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> AsyncIterator[RunningIngester]:
    """Start an ingester, and a producer on its topic."""
    name = topic(3)
    environment = service_environment(KAFKA_TOPIC=name, INGESTER_PARKED_FIRST_SECONDS="0.2")
    service = Service("ingester", environment, tmp_path).wait_ready()
    async with Producer(environment, name) as producer:
        yield service, producer
    service.stop()
    print(service.text[-6000:])


async def read_counts(engine: AsyncEngine) -> dict[Outcome, int]:
    """Return the counts of the books over all partitions."""
    async with engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    assert all(account.closes for account in accounts)
    return {o: sum(a.counts[o] for a in accounts) for o in Outcome}


async def test_events_become_typed_rows_once(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = ingester
    captures = [capture(number) for number in range(50)]
    await producer.produce(*captures)
    await producer.publish_all(item.event for item in captures[:20])
    await until(lambda: read_counts(engine), lambda counts: sum(counts.values()) == 70)
    counts = await read_counts(engine)
    assert counts[Outcome.STORED] == 50
    assert counts[Outcome.DUPLICATE] == 20
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(inference)) == 50
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 100
        # frame_number, exposure, camera_position.angle and .tilt
        assert await connection.scalar(select(func.count()).select_from(metadata_number)) == 200
        # The second prediction of each, the car, has the higher score.
        top = select(inference.c.top_score, label.c.name).distinct()
        top = top.join(label, label.c.label == inference.c.top_label)
        assert [tuple(row) for row in await connection.execute(top)] == [(0.5, "car")]


async def test_unreadable_events_become_dead_letters(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = ingester
    await producer.publish_all([b"not json", b"{}", b""])
    await producer.produce(capture(1))
    await until(lambda: read_counts(engine), lambda counts: sum(counts.values()) == 4)
    counts = await read_counts(engine)
    assert (counts[Outcome.STORED], counts[Outcome.DEAD]) == (1, 3)


async def test_event_without_its_blob_is_parked_until_the_blob_comes(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = ingester
    late = capture(7)
    await producer.put(late, "metadata")
    await producer.publish(late.event)
    await until(lambda: read_counts(engine), lambda counts: counts[Outcome.PARKED] == 1)
    await producer.put(late, "response")
    await until(lambda: read_counts(engine), lambda counts: counts[Outcome.STORED] == 1)
    assert (await read_counts(engine))[Outcome.PARKED] == 0


async def test_unexpected_error_ends_the_process(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    service, producer = ingester
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE inference CASCADE"))
    await producer.produce(capture(1))
    code = await asyncio.to_thread(service.process.wait, 180)
    assert code == 1
