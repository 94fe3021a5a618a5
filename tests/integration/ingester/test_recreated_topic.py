"""Topics that are recreated, cut, or not read, and what the consumer promises."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting
from inference_store.index.accounting import Outcome, PartitionId
from inference_store.ingester.batch import AssignedPartition, OffsetRange
from inference_store.ingester.kafka_consumer import KafkaConsumer
from inference_store.ingester.run import Watch
from inference_store.platform.settings import IngesterSettings
from tests.polling import until
from tests.producer import Capture, Producer, capture
from tests.servers.fixtures import MakeTopic, migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.service_process import Service
from tests.settings import make_settings
from tests.transactions import opened, transact

from .conftest import MANY, RunningIngester, StartIngester, read_health, wait_for_counts

OLD = [capture(number) for number in range(12)]
NEW = [capture(number) for number in range(100, 160)]
READ_AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
# An ingester in a busy loop would log more.
MOST_LINES = 60


async def publish(producer: Producer, some: Sequence[Capture], partitions: int) -> None:
    await producer.put_all(some)
    for number, item in enumerate(some):
        await producer.publish(item.event, partition=number % partitions)


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
    assert sorted((account.epoch, account.partition) for account in accounts) == [
        *((0, partition) for partition in range(3)),
        *((1, partition) for partition in range(partitions)),
    ]
    assert not any(account.lost for account in accounts)
    assert service.process.running
    assert service.text.count("\n") < MOST_LINES


@pytest.mark.real_kafka
@pytest.mark.parametrize(
    ("partitions", "events", "is_frozen"),
    [(3, 3, False), (2, 60, False), (3, 60, True)],
    ids=["fewer events", "fewer partitions, more events", "more events, while it is frozen"],
)
async def test_topic_recreated_under_a_running_or_frozen_ingester(
    start_ingester: StartIngester,
    engine: AsyncEngine,
    kafka_server: Kafka,
    partitions: int,
    events: int,
    is_frozen: bool,
) -> None:
    service, producer = await start_ingester(partitions=3)
    await publish(producer, OLD, 3)
    await wait_for_counts(engine, stored=len(OLD))
    if is_frozen:
        service.process.send_signal(signal.SIGSTOP)
    try:
        await recreate_topic(kafka_server, producer.topic, partitions)
        await publish(producer, NEW[:events], partitions)
    finally:
        service.process.send_signal(signal.SIGCONT)
    await check_stored(service, engine, events=events, partitions=partitions)


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
    assert [(lost.lo, lost.hi) for lost in account.lost_offsets] == [(2, 5)]


async def test_stores_the_lag_while_nothing_is_written(engine: AsyncEngine) -> None:
    ids = [PartitionId("kafka", "events", 0, number) for number in range(2)]
    async with engine.begin() as connection:
        for id in ids:
            await accounting.open_partition(connection, id, first=0)
    read = [AssignedPartition(TopicPartition(id.topic, id.partition), id) for id in ids]
    read[0].in_flight.append((3, READ_AT))

    async def find_ends() -> dict[AssignedPartition, int]:
        return dict(zip(read, (3, 0), strict=True))

    consumer: Any = SimpleNamespace(assigned=read, find_ends=find_ends)
    stop = asyncio.Event()
    watching = asyncio.create_task(Watch(consumer, engine, stop).run())
    try:
        busy, idle = await until(
            partial(transact, engine, accounting.list_accounts),
            lambda accounts: all(account.lag_measured_at is not None for account in accounts),
        )
    finally:
        stop.set()
        await watching
    assert (busy.waiting, busy.oldest_waiting_at) == (3, READ_AT)
    assert (idle.waiting, idle.oldest_waiting_at) == (0, None)


async def test_continues_after_what_is_written_after_a_reset_or_a_stop(
    kafka_server: Kafka, topic: MakeTopic, engine: AsyncEngine
) -> None:
    servers, name = kafka_server.bootstrap_servers, topic()
    group = {"kafka_topic": name, "kafka_group": unique("group")}
    settings = make_settings(IngesterSettings, kafka_bootstrap_servers=servers, **group)
    async with (
        AIOKafkaProducer(bootstrap_servers=servers) as producer,
        started(KafkaConsumer(settings, engine)) as consumer,
    ):
        # The pipeline polls again at once: a poll that never yields would block the others.
        other = asyncio.create_task(asyncio.sleep(0))
        assert await consumer.poll() == []
        assert other.done()
        await producer.send_and_wait(name, b"a")
        [written] = await until(consumer.poll, bool)
        move = partial(accounting.move_offsets, outcomes={Outcome.STORED: 1}, last=written.last)
        await transact(engine, move, written.partition_id, lo=written.lo, hi=written.hi)
        await producer.send_and_wait(name, b"b")
        [lost] = await until(consumer.poll, bool)
        consumer.reset(lost.assigned)
        assert lost.assigned.is_revoked
        assert lost.assigned not in consumer.assigned
        [again] = await until(consumer.poll, bool)
        check_second(again)
        assert again.assigned in consumer.assigned
        consumer.reset(lost.assigned)  # it is no longer assigned: this does nothing
        assert again.assigned in consumer.assigned
        await consumer.stop()
        assert again.assigned.is_revoked
        assert not consumer.assigned
        async with started(KafkaConsumer(settings, engine)) as following:
            [offset_range] = await until(following.poll, bool)
            check_second(offset_range)


@asynccontextmanager
async def started(consumer: KafkaConsumer) -> AsyncIterator[KafkaConsumer]:
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def check_second(offset_range: OffsetRange) -> None:
    """Check that it has the second record alone."""
    assert (offset_range.lo, offset_range.hi) == (1, 2)
    assert [record.payload for record in offset_range.records] == [b"b"]


# The database is recreated under a running ingester.


async def test_waits_for_the_tables_and_reads_the_topic_again(
    running: RunningIngester, postgres_server: Postgres, database: str
) -> None:
    """Live and not ready, and it says what to run; nothing that it remembers is used again."""
    service, producer = running
    await producer.produce(*MANY)
    async with opened(database) as engine:
        await wait_for_counts(engine, stored=len(MANY))

    name = urlsplit(database).path.removeprefix("/")
    await asyncio.to_thread(postgres_server.drop_database, name)
    await asyncio.to_thread(postgres_server.create_database, name)
    await producer.produce(capture(len(MANY)))
    await until(
        lambda: read_health(service, "postgres"), lambda said: "inference-store migrate" in said
    )
    assert service.process.running
    assert "database_replaced" in service.text

    await asyncio.to_thread(migrate, database)
    async with opened(database) as engine:
        await wait_for_counts(engine, stored=len(MANY) + 1)
