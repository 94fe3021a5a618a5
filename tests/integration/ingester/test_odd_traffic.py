"""Odd traffic: it waits, sets aside, or counts what was not delivered; a record or a batch that
cannot be read affects only itself."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaProducer
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index import accounting, tables, unsettled
from inference_store.index.unsettled import Selection
from inference_store.inference.errors import Conflict
from inference_store.inference.layout import Kind
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
from tests.transactions import execute, fetch, scalar, transact


async def test_a_poisonous_event_costs_itself(producer: Producer, engine: AsyncEngine) -> None:
    await execute(
        engine,
        "ALTER TABLE inference ADD CONSTRAINT poison"
        " CHECK (inference_id NOT IN ('inference-7', 'inference-13'))",
    )
    await producer.produce(*MANY)
    await wait_for_counts(engine, stored=18, dead=2)
    letters = await transact(engine, unsettled.find, Selection(state="open"), limit=10)
    assert [letter.rejection.reason for letter in letters] == ["unindexable"] * 2
    await execute(engine, "ALTER TABLE inference DROP CONSTRAINT poison")
    await transact(engine, unsettled.retry, Selection())
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
    assert (account.epoch, account.lost, account.closes) == (0, 0, True)


def start_transactional(kafka_server: Kafka, topic: str) -> AIOKafkaProducer:
    servers = kafka_server.bootstrap_servers
    return AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)


async def run_transaction(
    kafka: AIOKafkaProducer, topic: str, some: Sequence[Capture], *, commits: bool = True
) -> None:
    await kafka.begin_transaction()
    for item in some:
        await kafka.send_and_wait(topic, item.event)
    await (kafka.commit_transaction() if commits else kafka.abort_transaction())


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


SOME = [capture(number) for number in range(30)]
ODD = 7
BOMB_BYTES = 128 * 1024 * 1024


def make_batch(codec: str) -> OddBatch:
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
async def test_the_rest_of_an_unreadable_batch_is_one_dead_letter(
    start_ingester: StartIngester, engine: AsyncEngine, kafka_server: Kafka
) -> None:
    """From the odd record on, in each codec; all of it where the data cannot be unpacked."""
    service, producer = await start_ingester(partitions=3)
    await producer.put_all(SOME)
    batches = [make_batch(codec) for codec in CODECS]
    batches += [make_batch(codec).spoil() for codec in ("gzip", "lz4")]
    duplicates = left = 0
    for turn, batch in enumerate(batches):
        await send_batch(kafka_server, producer.topic, batch)
        for event_capture in SOME[10 + 2 * turn : 12 + 2 * turn]:
            await producer.publish(event_capture.event, partition=event_capture.number % 2 * 2)
        readable = ODD if turn < len(CODECS) else 0
        duplicates += readable if turn else 0
        left += 10 - readable - 1
        counts = {"duplicate": duplicates, "dead": 1 + turn, "not_delivered": left}
        await wait_for_counts(engine, stored=ODD + 2 * (turn + 1), **counts)
    letters = await transact(engine, unsettled.find, Selection(), limit=10)
    assert {letter.rejection.reason for letter in letters} == {"unreadable_record"}
    assert [letter.record.offset for letter in letters] == [60, 50, 47, 37, 27, 17, 7]
    assert all(letter.record.payload.endswith(b"junk") for letter in letters[:2])
    assert list_troubles(service) == []
    # It is no event: no redrive makes one of it.
    assert await transact(engine, unsettled.retry, Selection()) == 0
    with pytest.raises(Conflict, match="a Kafka batch, not an event"):
        await transact(engine, unsettled.retry_one, letters[0].id, "dead letter")
    # The last record read of the partition is such a batch: it is recognised after a restart.
    service.stop()
    service.restart()
    await producer.publish(SOME[0].event, partition=1)
    await wait_for_counts(engine, **(counts | {"duplicate": duplicates + 1}), stored=ODD + 14)


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
        assert f"larger than {BOMB_BYTES // 2} bytes" in letter.rejection.detail


# Blobs with any content are stored: none ends or stops the pipeline.

GOOD = json.dumps(
    {"outputs": [{"name": "p", "datatype": "BYTES", "shape": [1], "data": ['[{"label":"a"}]']}]}
).encode()


@dataclass(frozen=True, slots=True)
class Odd(Capture):
    """A capture whose blobs a test chooses."""

    odd: dict[Kind, bytes] = field(default_factory=dict)

    @property
    def blobs(self) -> dict[str, bytes]:
        return {self.key(kind): data for kind, data in self.odd.items()}


def make_odd_capture(number: int, **blobs: bytes) -> Odd:
    usual = {"data": b"d", "metadata": b"[]", "response": GOOD}
    return Odd(number, odd=cast("dict[Kind, bytes]", usual | blobs))


def make_metadata(*values: Any, type: str = "float") -> bytes:
    entries = [{"key": f"k{n}", "type": type, "value": value} for n, value in enumerate(values)]
    return json.dumps(entries).encode()


NUMBERS = (
    *("NaN", "Infinity", "-inf", float("nan"), float("inf")),
    *("1e999", "1e200000", "-1e-200000", "9" * 5000),
)
INSTANTS = ("9999-12-31T23:59:59+00:00", "0001-01-01", "99999-01-01", "9999-12-31T23:59:59-23:59")
# Blobs by what is odd in them; the others of a capture are as usual.
BLOBS: dict[str, dict[str, bytes]] = {
    "metadata_too_large": {"metadata": b"[" + b" " * (1024 * 1024) + b"]"},
    "response_too_large": {"response": b" " * (4 * 1024 * 1024 + 1)},
    "metadata_unreadable": {"metadata": b"<xml/>", "response": b"\x89PNG\r\n\x1a\n"},
    "NUL": {
        "metadata": rb'[{"key":"a\u0000b","type":"string","value":"x\u0000y"},'
        rb'{"key":"k","type":"json","value":{"in\u0000side":"z\u0000"}}]',
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\\\u0000\\"'),
    },
    "lone surrogates": {
        "metadata": rb'[{"key":"k","type":"string","value":"\ud800"},'
        rb'{"key":"\udfff","type":"string","value":"x"}]',
        "response": GOOD.replace(b'\\"a\\"', b'\\"\\\\ud800\\"'),
    },
    "numbers": {
        "metadata": make_metadata(*NUMBERS).replace(b'"1e999"', b"1e999"),
        "response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": NaN'),
    },
    "a score": {"response": GOOD.replace(b'\\"a\\"', b'\\"a\\", \\"score\\": 1e999')},
    "instants": {"metadata": make_metadata(*INSTANTS, type="timestamp")},
}


async def test_stores_odd_blobs(running: RunningIngester, engine: AsyncEngine) -> None:
    service, producer = running
    captures = [make_odd_capture(number, **blobs) for number, blobs in enumerate(BLOBS.values())]
    await producer.produce(*captures)
    await wait_for_counts(engine, stored=len(BLOBS))
    assert service.process.running
    query = select(tables.inference.c.flags).order_by(tables.inference.c.inference_id)
    flags = await fetch(engine, query)
    for name, number in (("metadata_too_large", 0), ("metadata_unreadable", 2)):
        assert name in flags[number], flags


async def test_indexes_metadata_that_an_engine_copied(
    producer: Producer, engine: AsyncEngine
) -> None:
    """Our proxy wrote none, an empty list, or more than the cap."""
    copied = {"metadata": make_metadata("987", type="int").decode()}
    answer = json.dumps({"outputs": [{"name": "p", "data": [], "parameters": copied}]}).encode()
    bare = b'{"standard_metadata": {}, "metadata": [], "event": {}, "request": {}, "capture": {}}'
    blobs = (b"[]", bare, b"[" + b" " * (1024 * 1024) + b"]", make_metadata("1", type="int"))
    captures = [make_odd_capture(n, metadata=blob, response=answer) for n, blob in enumerate(blobs)]
    await producer.produce(*captures)
    await wait_for_counts(engine, stored=len(blobs))
    values = Counter(await fetch(engine, select(tables.metadata_number.c.value)))
    assert values == {Decimal(987): 3, Decimal(1): 1}


async def test_redelivery_undoes_no_edit_and_waits_for_no_blob(
    producer: Producer, engine: AsyncEngine, minio_server: S3, bucket: str
) -> None:
    """The redelivery comes in a batch with new events, after a blob was rewritten or deleted."""
    first = [capture(number) for number in range(3)]
    await producer.produce(*first)
    await wait_for_counts(engine, stored=3)
    await execute(engine, tables.inference.update().values(revision=2, metadata=b"[]"))
    metadata = [{"key": "new", "type": "int", "value": "1"}]
    await producer.put_all([capture(number, metadata=metadata) for number in range(3)])
    minio_server.client().remove_object(bucket, first[0].key("response"))
    new = [capture(number) for number in range(3, 6)]
    await producer.put_all(new)
    await producer.publish_all(item.event for item in (*first, *new))
    await wait_for_counts(engine, stored=6, duplicate=3)
    edited_rows = select(func.count()).where(
        tables.inference.c.revision == 2, tables.inference.c.metadata == b"[]"
    )
    assert await scalar(engine, edited_rows) == 3
    assert await scalar(engine, select(func.count()).select_from(tables.prediction)) == 12
    assert await scalar(engine, select(func.count()).select_from(tables.metadata_number)) == 24
