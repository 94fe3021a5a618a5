"""The topic is deleted and made anew under a running ingester: all of the new one is stored."""

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome
from tests.e2e.faults.books_close import counted
from tests.integration.ingester.conftest import StartIngester
from tests.polling import until
from tests.producer import Capture, Producer, capture
from tests.servers.kafka import Kafka
from tests.service_process import Service

pytestmark = pytest.mark.real_kafka
OLD = [capture(number) for number in range(12)]
NEW = [capture(number) for number in range(100, 160)]
# An ingester that spins would log more.
MOST_LINES = 60


async def publish(producer: Producer, some: Sequence[Capture], partitions: int) -> None:
    """Events, each partition in its turn."""
    await producer.put_all(some)
    for number, one in enumerate(some):
        await producer.publish(one.event, partition=number % partitions)


async def stored_old(producer: Producer, engine: AsyncEngine) -> None:
    """The first topic has been read to its end."""
    await publish(producer, OLD, 3)
    await until(lambda: counted(engine), lambda found: found[Outcome.STORED] == len(OLD))


async def make_anew(kafka_server: Kafka, topic: str, partitions: int) -> None:
    await asyncio.to_thread(kafka_server.delete_topic, topic)
    await asyncio.to_thread(kafka_server.create_topic, topic, partitions=partitions)


async def check(service: Service, engine: AsyncEngine, *, events: int, partitions: int) -> None:
    """Old and new events are stored once, in two epochs; nothing else has happened."""
    stored = len(OLD) + events
    await until(lambda: counted(engine), lambda found: found.total() >= stored)
    assert +(await counted(engine)) == Counter({Outcome.STORED: stored})
    async with engine.connect() as connection:
        accounts = await accounting.list_accounts(connection)
    began = sorted(
        (one.partition_id.epoch, one.partition_id.partition, one.began) for one in accounts
    )
    assert began == [
        *((0, partition, "first") for partition in range(3)),
        *((1, partition, "anew") for partition in range(partitions)),
    ]
    assert not any(one.lost for one in accounts)
    assert service.process.running
    assert service.text.count("\n") < MOST_LINES


@pytest.mark.parametrize("partitions", [3, 2], ids=["as many partitions", "fewer partitions"])
@pytest.mark.parametrize("events", [3, 60], ids=["fewer events", "more events"])
async def test_a_topic_made_anew_under_a_running_ingester(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    kafka_server: Kafka,
    partitions: int,
    events: int,
) -> None:
    service, producer = await start_ingester(partitions=3)
    await stored_old(producer, engine)
    await make_anew(kafka_server, producer.topic, partitions)
    await publish(producer, NEW[:events], partitions)
    await check(service, engine, events=events, partitions=partitions)


async def test_a_topic_made_anew_and_filled_while_nobody_looked(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    """It has as many partitions as before, and goes beyond the offsets where reading goes on."""
    service, producer = await start_ingester(partitions=3)
    await stored_old(producer, engine)
    service.process.send_signal(signal.SIGSTOP)
    try:
        await make_anew(kafka_server, producer.topic, 3)
        await publish(producer, NEW, 3)
    finally:
        service.process.send_signal(signal.SIGCONT)
    await check(service, engine, events=len(NEW), partitions=3)
