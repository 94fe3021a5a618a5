"""Topics that are recreated, cut, or not read, and what the consumer promises."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiokafka import AIOKafkaProducer
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
    assert sorted((account.epoch, account.partition) for account in accounts) == [
        *((0, partition) for partition in range(3)),
        *((1, partition) for partition in range(partitions)),
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
    assert [(lost.lo, lost.hi) for lost in account.lost_offsets] == [(2, 5)]


async def test_stores_the_lag_while_nothing_is_written(engine: AsyncEngine) -> None:
    ids = [PartitionId("kafka", "events", 0, number) for number in range(2)]
    async with engine.begin() as connection:
        for id in ids:
            await accounting.open_partition(connection, id, first=0)
    read = [AssignedPartition(id.partition, id) for id in ids]
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


class World:
    """A topic of two partitions, a group that reads it, and its positions in Postgres."""

    def __init__(
        self, settings: IngesterSettings, engine: AsyncEngine, producer: AIOKafkaProducer
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._producer = producer

    def make_consumer(self) -> KafkaConsumer:
        return KafkaConsumer(self._settings, self._engine)

    async def append(self, partition: int, *payloads: bytes) -> None:
        for payload in payloads:
            await self._producer.send_and_wait(
                self._settings.kafka_topic, payload, partition=partition
            )

    async def write(self, offset_range: OffsetRange) -> None:
        async with self._engine.begin() as connection:
            await accounting.move_offsets(
                connection,
                offset_range.partition_id,
                lo=offset_range.lo,
                hi=offset_range.hi,
                outcomes={Outcome.STORED: offset_range.hi - offset_range.lo},
                last=offset_range.last,
            )


@pytest.fixture
async def world(kafka_server: Kafka, topic: MakeTopic, engine: AsyncEngine) -> AsyncIterator[World]:
    servers = kafka_server.bootstrap_servers
    settings = make_settings(
        IngesterSettings,
        kafka_bootstrap_servers=servers,
        kafka_topic=topic(2),
        kafka_group=unique("group"),
    )
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        yield World(settings, engine, producer)


async def read(consumer: KafkaConsumer, count: int) -> list[OffsetRange]:
    """Poll until there are `count` records; return their ranges."""
    ranges: list[OffsetRange] = []

    async def poll() -> int:
        ranges.extend(await consumer.poll())
        return sum(len(offset_range.records) for offset_range in ranges)

    await until(poll, lambda number: number >= count)
    return ranges


def list_payloads(ranges: Iterable[OffsetRange], partition: int) -> list[bytes]:
    own_ranges = (
        offset_range for offset_range in ranges if offset_range.assigned.partition == partition
    )
    return [record.payload for offset_range in own_ranges for record in offset_range.records]


def list_bounds(ranges: Sequence[OffsetRange], partition: int) -> list[tuple[int, int]]:
    return [
        (offset_range.lo, offset_range.hi)
        for offset_range in ranges
        if offset_range.assigned.partition == partition
    ]


@asynccontextmanager
async def started(consumer: KafkaConsumer) -> AsyncIterator[KafkaConsumer]:
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def _do_nothing() -> None:
    """Take one turn of the event loop."""


async def test_reads_every_offset_once_and_in_order(world: World) -> None:
    async with started(world.make_consumer()) as consumer:
        await world.append(0, b"a", b"b")
        await world.append(1, b"c")
        ranges = await read(consumer, 3)
        await world.append(0, b"d")
        ranges += await read(consumer, 1)
        assert list_payloads(ranges, 0) == [b"a", b"b", b"d"]
        assert list_payloads(ranges, 1) == [b"c"]
        bounds = list_bounds(ranges, 0)
        assert (bounds[0][0], bounds[-1][1]) == (0, 3)
        assert all(previous[1] == following[0] for previous, following in pairwise(bounds))
        assert {offset_range.assigned for offset_range in ranges} == set(consumer.assigned)
        ends = await consumer.find_ends()
        assert {assigned.partition: end for assigned, end in ends.items()} == {0: 3, 1: 1}
        for _ in range(2):
            await consumer.commit(ranges)


async def test_continues_after_what_is_written_after_a_reset(world: World) -> None:
    async with started(world.make_consumer()) as consumer:
        await world.append(0, b"a")
        [written] = await read(consumer, 1)
        await world.write(written)
        await world.append(0, b"b")
        [lost] = await read(consumer, 1)
        consumer.reset(lost.assigned)
        assert lost.assigned.is_revoked
        assert lost.assigned not in consumer.assigned
        [again] = await read(consumer, 1)
        assert (again.lo, again.hi) == (1, 2)
        assert list_payloads([again], 0) == [b"b"]
        assert again.assigned in consumer.assigned
        consumer.reset(lost.assigned)  # it is no longer assigned: this does nothing
        assert again.assigned in consumer.assigned


async def test_next_consumer_continues_after_what_is_written(world: World) -> None:
    first = world.make_consumer()
    await first.start()
    await world.append(0, b"a")
    [written] = await read(first, 1)
    await world.write(written)
    await first.stop()
    assert written.assigned.is_revoked
    assert not first.assigned
    await first.stop()
    await world.append(0, b"b")
    async with started(world.make_consumer()) as second:
        [offset_range] = await read(second, 1)
        assert (offset_range.lo, offset_range.hi, list_payloads([offset_range], 0)) == (
            1,
            2,
            [b"b"],
        )


async def test_empty_poll_lets_other_tasks_run(world: World) -> None:
    """The pipeline polls again at once: a poll that never yields would block the others."""
    async with started(world.make_consumer()) as consumer:
        other = asyncio.create_task(_do_nothing())
        assert await consumer.poll() == []
        assert other.done()


async def test_stops_without_a_start(world: World) -> None:
    consumer = world.make_consumer()
    await consumer.stop()
    assert not consumer.assigned


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
