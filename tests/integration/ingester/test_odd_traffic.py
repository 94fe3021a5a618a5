"""Odd traffic: it waits, sets aside, or counts what was not delivered; a record or a batch that
cannot be read affects only itself."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, registrations, unsettled
from inference_store.index.registrations import Details
from inference_store.index.tables import inference, tombstone
from inference_store.index.unsettled import Selection
from inference_store.ingester.record_batches import MOST_BYTES
from tests.e2e.faults.traffic import uid_of
from tests.integration.ingester.conftest import (
    MANY,
    RunningIngester,
    StartIngester,
    list_troubles,
    read_health,
    wait_for_counts,
    wait_until_ready,
)
from tests.odd_batch import CODECS, OddBatch, make_odd_name
from tests.polling import until
from tests.producer import Capture, Producer, capture
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.postgres import Postgres
from tests.service_process import Service
from tests.transactions import execute, transact


async def count_reasons(engine: AsyncEngine) -> Counter[str]:
    letters = await transact(engine, unsettled.find, Selection(state="open"), limit=1000)
    return Counter(letter.rejection.reason for letter in letters)


async def redrive_all(engine: AsyncEngine) -> None:
    await transact(engine, unsettled.retry, Selection())


async def test_a_poisonous_event_costs_itself_alone(
    producer: Producer, engine: AsyncEngine
) -> None:
    await execute(
        engine,
        "ALTER TABLE inference ADD CONSTRAINT poison"
        " CHECK (inference_id NOT IN ('inference-7', 'inference-13'))",
    )
    await producer.produce(*MANY)
    await wait_for_counts(engine, stored=18, dead=2)
    assert await count_reasons(engine) == {"unindexable": 2}
    await execute(engine, "ALTER TABLE inference DROP CONSTRAINT poison")
    await redrive_all(engine)
    await wait_for_counts(engine, stored=20)


@pytest.mark.real_kafka
async def test_aborted_transactions_are_not_delivered(
    producer: Producer, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    await producer.put_all(MANY)
    async with start_transactional(kafka_server, producer.topic) as kafka:
        for some, commits in ((MANY[:3], True), (MANY[3:6], False), (MANY[6:8], True)):
            await run_transaction(kafka, producer.topic, some, commits=commits)
    # Three events and their marker, the marker before them, and the last one at the end.
    await wait_for_counts(engine, stored=5, not_delivered=6)


@pytest.mark.real_kafka
async def test_deleted_markers_at_the_end_of_the_log_are_not_lost(
    running: RunningIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    service, producer = running
    await producer.put_all(MANY)
    async with start_transactional(kafka_server, producer.topic) as kafka:
        await run_transaction(kafka, producer.topic, MANY[:3])
        await run_transaction(kafka, producer.topic, MANY[3:5], commits=False)
    # The events and their marker, and the two aborted events and theirs.
    await wait_for_counts(engine, stored=3, not_delivered=4)
    # It starts again after its last event; the markers lie in between.
    service.stop()
    service.restart(KAFKA_GROUP=unique("group"))
    await producer.publish_all([MANY[5].event])
    await wait_for_counts(engine, stored=4, not_delivered=4)
    async with start_transactional(kafka_server, producer.topic) as kafka:
        await run_transaction(kafka, producer.topic, MANY[6:7], commits=False)
    await wait_for_counts(engine, stored=4, not_delivered=6)
    service.stop()
    await asyncio.to_thread(kafka_server.delete_records, producer.topic)
    await producer.publish_all([MANY[7].event])
    service.restart(KAFKA_GROUP=unique("group"))
    await wait_for_counts(engine, stored=5, not_delivered=6)
    [account] = await transact(engine, accounting.list_accounts)
    assert (account.partition_id.epoch, account.lost, account.closes) == (0, (), True)


@asynccontextmanager
async def start_transactional(kafka_server: Kafka, topic: str) -> AsyncIterator[AIOKafkaProducer]:
    kafka = AIOKafkaProducer(
        bootstrap_servers=kafka_server.bootstrap_servers, transactional_id=topic
    )
    await kafka.start()
    try:
        yield kafka
    finally:
        await kafka.stop()


async def run_transaction(
    kafka: AIOKafkaProducer, topic: str, some: Sequence[Capture], *, commits: bool = True
) -> None:
    await kafka.begin_transaction()
    for item in some:
        await kafka.send_and_wait(topic, item.event)
    await (kafka.commit_transaction() if commits else kafka.abort_transaction())


async def test_rejects_unknown_models(start_ingester: StartIngester, engine: AsyncEngine) -> None:
    _, producer = await start_ingester(INGESTER_UNKNOWN_MODELS="refuse")
    await producer.produce(*MANY)
    await wait_for_counts(engine, dead=20)
    assert await count_reasons(engine) == {"unknown_model": 20}
    await transact(engine, registrations.put, MANY[0].model_id, Details())
    await redrive_all(engine)
    await wait_for_counts(engine, stored=20)


@pytest.mark.real_minio
async def test_waits_for_a_missing_bucket(
    running: RunningIngester, engine: AsyncEngine, minio_server: S3, bucket: str
) -> None:
    service, producer = running
    minio_server.client().remove_bucket(bucket)
    await producer.publish_all(item.event for item in MANY)
    await until(lambda: read_health(service, "object store"), lambda health: bucket in health)
    assert await transact(engine, unsettled.find, Selection(state="parked"), limit=1) == []
    minio_server.create_bucket(bucket)
    await producer.put_all(MANY)
    # Events read between the two lines above are parked, and stored soon after.
    await wait_for_counts(engine, stored=20)
    await wait_until_ready(service, "object store")


async def test_waits_for_a_read_only_database(
    running: RunningIngester, engine: AsyncEngine, postgres_server: Postgres
) -> None:
    service, producer = running
    name = engine.url.database
    cut_off = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        f" WHERE datname = '{name}' AND application_name = 'inference-store-ingester'"
    )
    read_only = f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'
    writable = f'ALTER DATABASE "{name}" RESET default_transaction_read_only'
    await asyncio.to_thread(postgres_server.execute, read_only, cut_off)
    await producer.produce(*MANY)
    await until(lambda: read_health(service, "postgres"), lambda health: "read-only" in health)
    assert service.process.running
    await asyncio.to_thread(postgres_server.execute, writable, cut_off)
    await wait_for_counts(engine, stored=20)
    await wait_until_ready(service, "postgres")


async def test_redelivery_of_an_erased_inference_does_not_wait_for_blobs(
    start_ingester: StartIngester, engine: AsyncEngine, bucket: str
) -> None:
    """Many of them do not count as faults either."""
    _, producer = await start_ingester(INGESTER_DEAD_LETTER_LIMIT="1")
    await producer.produce(MANY[0])
    await wait_for_counts(engine, stored=1)
    async with engine.begin() as connection:
        model = await connection.scalar(select(inference.c.model))
        rows = [{"model": model, "uid": uid_of(item, bucket)} for item in MANY[1:]]
        await connection.execute(insert(tombstone), rows)
    await producer.publish_all(item.event for item in MANY[1:])
    await wait_for_counts(engine, stored=1, erased_again=19)


async def test_redelivery_of_a_stored_inference_does_not_wait_for_blobs(
    producer: Producer, engine: AsyncEngine, minio_server: S3, bucket: str
) -> None:
    await producer.produce(MANY[0])
    await wait_for_counts(engine, stored=1)
    minio_server.client().remove_object(bucket, MANY[0].key("response"))
    await producer.publish(MANY[0].event)
    await wait_for_counts(engine, stored=1, duplicate=1)


SOME = [capture(number) for number in range(30)]
ODD = 7
BOMB_BYTES = 2 * MOST_BYTES


def make_batch(codec: str) -> OddBatch:
    """Make a batch of ten events, one of them with an odd header."""
    batch = OddBatch(codec)
    for event_capture in SOME[:10]:
        odd = [(make_odd_name(b"caf\xe9"), b"1")] if event_capture.number == ODD else []
        batch.add(
            event_capture.event,
            [("producer", b"p"), ("sequence", b"%d" % event_capture.number), *odd],
        )
    return batch


async def send_batch(kafka_server: Kafka, topic: str, batch: OddBatch) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka_server.bootstrap_servers) as kafka:
        await (await kafka.send_batch(batch, topic, partition=1))


@pytest.mark.real_kafka
async def test_unreadable_record_is_a_dead_letter_and_others_are_stored(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    """In a batch of each codec; the batches of later ones repeat nine stored events."""
    service, producer = await start_ingester(partitions=3)
    await producer.put_all(SOME)
    for turn, codec in enumerate(CODECS):
        await send_batch(kafka_server, producer.topic, make_batch(codec))
        for event_capture in SOME[10 + 4 * turn : 14 + 4 * turn]:
            await producer.publish(event_capture.event, partition=event_capture.number % 3)
        await wait_for_counts(engine, stored=13 + 4 * turn, duplicate=9 * turn, dead=1 + turn)
    letters = await transact(engine, unsettled.find, Selection(), limit=10)
    assert len(letters) == len(CODECS)
    for letter in letters:
        assert letter.rejection.reason == "invalid_header"
        assert letter.rejection.inference_id == f"inference-{ODD}"
        assert letter.record.payload == SOME[ODD].event
        assert ("caf\\xe9", "1") in [tuple(header) for header in letter.record.headers]
    assert list_troubles(service) == []
    await transact(engine, unsettled.retry, Selection())
    await wait_for_counts(engine, stored=30, duplicate=9 * 4 + 4)


@pytest.mark.real_kafka
async def test_unreadable_batch_becomes_dead_letters(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    service, producer = await start_ingester(partitions=3)
    await producer.put_all(SOME)
    for turn, codec in enumerate(("gzip", "lz4"), start=1):
        await send_batch(kafka_server, producer.topic, make_batch(codec).spoil())
        for event_capture in SOME[10 * turn : 10 * turn + 10]:
            await producer.publish(event_capture.event, partition=event_capture.number % 2 * 2)
        await wait_for_counts(engine, stored=10 * turn, dead=10 * turn)
    letters = await transact(engine, unsettled.find, Selection(), limit=30)
    assert {letter.rejection.reason for letter in letters} == {"unreadable_record"}
    payloads = {letter.record.offset: letter.record.payload for letter in letters}
    assert all(payloads.pop(offset).endswith(b"junk") for offset in (0, 10))
    assert (set(payloads.values()), len(payloads)) == ({b""}, 18)
    # The last record read of the partition is in this batch: it is recognised after a restart.
    service.stop()
    service.restart()
    await producer.publish(SOME[0].event, partition=1)
    await wait_for_counts(engine, stored=21, dead=20)


def _read_peak_bytes(service: Service) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


@pytest.mark.real_kafka
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the peak")
async def test_a_batch_that_would_fill_memory_is_a_dead_letter(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    service, producer = await start_ingester()
    await producer.put_all(SOME[:3])
    await producer.publish(SOME[0].event)
    await wait_for_counts(engine, stored=1)
    before = _read_peak_bytes(service)
    for turn, codec in enumerate(("gzip", "zstd"), start=1):
        kafka = AIOKafkaProducer(
            bootstrap_servers=kafka_server.bootstrap_servers,
            compression_type=codec,
            max_request_size=2 * BOMB_BYTES,
        )
        async with kafka:
            await kafka.send_and_wait(producer.topic, bytes(BOMB_BYTES))
        await producer.publish(SOME[turn].event)
        await wait_for_counts(engine, stored=1 + turn, dead=turn)
        assert _read_peak_bytes(service) - before < BOMB_BYTES, codec
    letters = await transact(engine, unsettled.find, Selection(), limit=10)
    for letter in letters:
        assert letter.rejection.reason == "unreadable_record"
        assert f"larger than {MOST_BYTES} bytes" in letter.rejection.detail
