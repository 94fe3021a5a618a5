"""Topics that are recreated, cut, or not read: which events are stored, lost, and waiting."""

import asyncio
import signal
from collections.abc import Sequence
from functools import partial

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Account
from inference_store.ingester.run import Watch
from tests.integration.ingester.conftest import RunningIngester, StartIngester, wait_for_counts
from tests.memory_consumer import MemoryConsumer, MemoryLog
from tests.polling import until
from tests.producer import Capture, Producer, capture
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.service_process import Service
from tests.transactions import transact

OLD = [capture(number) for number in range(12)]
NEW = [capture(number) for number in range(100, 160)]
# An ingester in a busy loop would log more.
MOST_LINES = 60


async def publish(producer: Producer, some: Sequence[Capture], partitions: int) -> None:
    await producer.put_all(some)
    for number, item in enumerate(some):
        await producer.publish(item.event, partition=number % partitions)


async def store_old_events(producer: Producer, engine: AsyncEngine) -> None:
    await publish(producer, OLD, 3)
    await wait_for_counts(engine, stored=len(OLD))


async def recreate_topic(kafka_server: Kafka, topic: str, partitions: int) -> None:
    await asyncio.to_thread(kafka_server.delete_topic, topic)
    await asyncio.to_thread(kafka_server.create_topic, topic, partitions=partitions)


async def check_stored(
    service: Service, engine: AsyncEngine, *, events: int, partitions: int
) -> None:
    """Check that old and new events are stored once, in two epochs, and nothing else."""
    stored = len(OLD) + events
    await wait_for_counts(engine, stored=stored)
    accounts = await transact(engine, accounting.list_accounts)
    began = sorted(
        (account.partition_id.epoch, account.partition_id.partition, account.began)
        for account in accounts
    )
    assert began == [
        *((0, partition, "first") for partition in range(3)),
        *((1, partition, "anew") for partition in range(partitions)),
    ]
    assert not any(account.lost for account in accounts)
    assert service.process.running
    assert service.text.count("\n") < MOST_LINES


@pytest.mark.real_kafka
@pytest.mark.parametrize(
    ("partitions", "events"),
    [(3, 3), (2, 60)],
    ids=["as many partitions, fewer events", "fewer partitions, more events"],
)
async def test_topic_recreated_under_a_running_ingester(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    kafka_server: Kafka,
    partitions: int,
    events: int,
) -> None:
    service, producer = await start_ingester(partitions=3)
    await store_old_events(producer, engine)
    await recreate_topic(kafka_server, producer.topic, partitions)
    await publish(producer, NEW[:events], partitions)
    await check_stored(service, engine, events=events, partitions=partitions)


@pytest.mark.real_kafka
async def test_topic_recreated_and_filled_while_the_ingester_was_stopped(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    """It has as many partitions as before, and more events than were read of the old one."""
    service, producer = await start_ingester(partitions=3)
    await store_old_events(producer, engine)
    service.process.send_signal(signal.SIGSTOP)
    try:
        await recreate_topic(kafka_server, producer.topic, 3)
        await publish(producer, NEW, 3)
    finally:
        service.process.send_signal(signal.SIGCONT)
    await check_stored(service, engine, events=len(NEW), partitions=3)


EVENTS = [capture(number) for number in range(8)]


@pytest.mark.real_kafka
async def test_what_lies_before_the_records_that_are_left_is_lost(
    running: RunningIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    service, producer = running
    await producer.produce(*EVENTS[:2])
    await wait_for_counts(engine, stored=2)
    service.stop()
    await producer.produce(*EVENTS[2:5])
    await asyncio.to_thread(kafka_server.delete_records, producer.topic)
    await producer.produce(*EVENTS[5:])
    service.restart(KAFKA_GROUP=unique("group"))
    await wait_for_counts(engine, stored=5, lost=3)
    [account] = await transact(engine, accounting.list_accounts)
    assert account.lost == [(2, 5)]


async def test_stores_the_lag_while_nothing_is_written(engine: AsyncEngine) -> None:
    log = MemoryLog(partitions=2)
    for _ in range(3):
        log.append(0, b"{}")
    consumer, stop = MemoryConsumer(log), asyncio.Event()
    await consumer.start()
    [read] = await consumer.poll()
    async with engine.begin() as connection:
        for assigned in consumer.assigned:
            assert assigned.partition_id is not None
            await accounting.open_partition(
                connection, assigned.partition_id, first=0, began="first"
            )
    watching = asyncio.create_task(Watch(consumer, engine, stop).run())
    try:
        busy, idle = await until(partial(_list_accounts, engine), _are_measured)
    finally:
        stop.set()
        await watching
    assert (busy.waiting, busy.oldest_waiting_at) == (3, read.records[0].time)
    assert (idle.waiting, idle.oldest_waiting_at) == (0, None)


async def _list_accounts(engine: AsyncEngine) -> list[Account]:
    return await transact(engine, accounting.list_accounts)


def _are_measured(accounts: list[Account]) -> bool:
    return all(account.lag_measured_at is not None for account in accounts)
