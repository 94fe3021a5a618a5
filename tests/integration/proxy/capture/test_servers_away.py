"""S3 and Kafka stopped and started again: callers unaffected, nothing lost, the books close."""

import asyncio
import time

import pytest

from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer

from .servers import arrived, hand_over, published, reports, running, settings

pytestmark = [pytest.mark.faults, pytest.mark.real_kafka, pytest.mark.real_minio]


@pytest.mark.parametrize("away", ["object store", "kafka"])
async def test_captures_wait_for_a_server_that_is_away(
    away: str, own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    events = own_kafka.create_topic(unique())
    told = own_kafka.create_topic(unique())
    bucket = own_minio.create_bucket(unique())
    made = settings(own_kafka, own_minio, bucket, kafka_topic=events, kafka_reports_topic=told)
    server = own_minio if away == "object store" else own_kafka
    async with running(made) as captures:
        hand_over(captures, 0)
        await published(captures, 1)
        await asyncio.to_thread(server.stop)
        slowest = 0.0
        for number in range(1, 51):
            began = time.perf_counter()
            assert hand_over(captures, number)
            slowest = max(slowest, time.perf_counter() - began)
            await asyncio.sleep(0.01)
        assert slowest < 1
        await until(captures.waits[away], lambda why: why is not None, seconds=180)
        await asyncio.to_thread(server.start)
        await published(captures, 51, seconds=180)
        await until(captures.waits[away], lambda why: why is None)
    found = await arrived(own_kafka, events)
    assert {each.sequence for each in found} == set(range(1, 52))
    last = max(await reports(own_kafka, told), key=lambda report: report.number)
    assert last.closes
    assert (last.seen, last.published, last.dropped, last.final) == (51, 51, {}, True)


async def test_started_without_kafka_it_publishes_when_kafka_comes(
    own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    events = own_kafka.create_topic(unique())
    told = own_kafka.create_topic(unique())
    bucket = own_minio.create_bucket(unique())
    made = settings(own_kafka, own_minio, bucket, kafka_topic=events, kafka_reports_topic=told)
    await asyncio.to_thread(own_kafka.stop)
    async with running(made) as captures:
        assert hand_over(captures, 1)
        await until(captures.waits["kafka"], lambda why: why is not None, seconds=180)
        await asyncio.to_thread(own_kafka.start)
        await published(captures, 1, seconds=180)
    assert len(await arrived(own_kafka, events)) == 1


async def test_left_without_kafka_it_ends_in_time_and_says_what_is_lost(
    own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    bucket = own_minio.create_bucket(unique())
    made = settings(own_kafka, own_minio, bucket, kafka_bootstrap_servers="127.0.0.1:9")
    began = time.monotonic()
    async with running(made) as captures:
        for number in range(5):
            assert hand_over(captures, number)
        assert await captures.stop(0.5) == 5
    assert time.monotonic() - began < 60
