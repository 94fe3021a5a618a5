"""A record that aiokafka cannot read affects only itself, or at most its batch."""

import re
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import unsettled
from inference_store.index.unsettled import Selection
from inference_store.ingester.record_batches import MOST_BYTES
from tests.integration.ingester.conftest import StartIngester, list_troubles, wait_for_counts
from tests.odd_batch import CODECS, OddBatch, make_odd_name
from tests.producer import capture
from tests.servers.kafka import Kafka
from tests.service_process import Service
from tests.transactions import transact

pytestmark = pytest.mark.real_kafka
SOME = [capture(number) for number in range(30)]
ODD = 7
BOMB_BYTES = 2 * MOST_BYTES


def make_batch(codec: str, *, transactional: bool = False) -> OddBatch:
    """Make a batch of ten events, one of them with an odd header."""
    batch = OddBatch(codec, transactional=transactional)
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


async def test_unreadable_record_of_an_aborted_transaction_is_not_delivered(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    _, producer = await start_ingester()
    await producer.put_all(SOME)
    kafka = AIOKafkaProducer(
        bootstrap_servers=kafka_server.bootstrap_servers, transactional_id=producer.topic
    )
    await kafka.start()
    try:
        for commits in (False, True):
            await kafka.begin_transaction()
            batch = make_batch("gzip", transactional=True)
            await (await kafka.send_batch(batch, producer.topic, partition=0))
            await (kafka.commit_transaction() if commits else kafka.abort_transaction())
    finally:
        await kafka.stop()
    await producer.publish(SOME[10].event)
    # Ten events and their marker, and the marker of the committed ones.
    await wait_for_counts(engine, stored=10, dead=1, not_delivered=12)


def _read_peak_bytes(service: Service) -> int:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) * 1024


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
