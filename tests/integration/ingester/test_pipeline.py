"""One ingester process, real servers: what is published is stored, once."""

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
    """A running ingester and a producer on its topic."""
    name = topic(3)
    environment = service_environment(KAFKA_TOPIC=name, INGESTER_PARKED_FIRST_SECONDS="0.2")
    service = Service("ingester", environment, tmp_path).wait_ready()
    async with Producer(environment, name) as producer:
        yield service, producer
    service.stop()
    print(service.text[-6000:])


async def counted(engine: AsyncEngine) -> dict[Outcome, int]:
    """The books, over all partitions."""
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
    await producer.publish_all(one.event for one in captures[:20])
    await until(lambda: counted(engine), lambda found: sum(found.values()) == 70)
    found = await counted(engine)
    assert found[Outcome.STORED] == 50
    assert found[Outcome.DUPLICATE] == 20
    async with engine.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(inference)) == 50
        assert await connection.scalar(select(func.count()).select_from(prediction)) == 100
        # frame_number, exposure, camera_position.angle and .tilt
        assert await connection.scalar(select(func.count()).select_from(metadata_number)) == 200
        # the second prediction of each, the car, has the higher score
        top = select(inference.c.top_score, label.c.name).distinct()
        top = top.join(label, label.c.label == inference.c.top_label)
        assert [tuple(row) for row in await connection.execute(top)] == [(0.5, "car")]


async def test_what_cannot_be_read_is_a_dead_letter_and_the_line_goes_on(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = ingester
    await producer.publish_all([b"not json", b"{}", b""])
    await producer.produce(capture(1))
    await until(lambda: counted(engine), lambda found: sum(found.values()) == 4)
    found = await counted(engine)
    assert (found[Outcome.STORED], found[Outcome.DEAD]) == (1, 3)


async def test_an_event_without_its_blob_is_parked_until_the_blob_comes(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    _, producer = ingester
    late = capture(7)
    await producer.put(late, "metadata")
    await producer.publish(late.event)
    await until(lambda: counted(engine), lambda found: found[Outcome.PARKED] == 1)
    await producer.put(late, "response")
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == 1)
    assert (await counted(engine))[Outcome.PARKED] == 0


async def test_an_error_nobody_foresaw_ends_the_process(
    ingester: RunningIngester, engine: AsyncEngine
) -> None:
    service, producer = ingester
    async with engine.begin() as connection:
        await connection.execute(text("DROP TABLE inference CASCADE"))
    await producer.produce(capture(1))
    code = await asyncio.to_thread(service.process.wait, 20)
    assert code == 1
