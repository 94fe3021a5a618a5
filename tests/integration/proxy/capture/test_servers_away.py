"""S3 or Kafka is stopped and started again: callers notice nothing, nothing is lost."""

import asyncio
import time
from statistics import median

import pytest

from tests.polling import until
from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer

from .servers import (
    hand_over,
    make_proxy_settings,
    read_events,
    read_reports,
    start_captures,
    wait_until_published,
)

pytestmark = [pytest.mark.faults, pytest.mark.real_kafka, pytest.mark.real_minio]


@pytest.mark.parametrize("away", ["object store", "kafka"])
async def test_captures_wait_for_a_server_that_is_away(
    away: str, own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    events = own_kafka.create_topic(unique())
    report_topic = own_kafka.create_topic(unique())
    bucket = own_minio.create_bucket(unique())
    proxy_settings = make_proxy_settings(
        own_kafka, own_minio, bucket, kafka_topic=events, kafka_reports_topic=report_topic
    )
    server = own_minio if away == "object store" else own_kafka
    async with start_captures(proxy_settings) as captures:
        hand_over(captures, 0)
        await wait_until_published(captures, 1)
        await asyncio.to_thread(server.stop)
        seconds: list[float] = []
        for number in range(1, 51):
            began = time.perf_counter()
            assert hand_over(captures, number)
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
        # a wait for the server would be in each of them, one of the machine in few
        assert median(seconds) < 0.1
        await until(captures.waits[away], lambda why: why is not None, seconds=180)
        await asyncio.to_thread(server.start)
        await wait_until_published(captures, 51, seconds=180)
        await until(captures.waits[away], lambda why: why is None)
    published = await read_events(own_kafka, events)
    assert {event.sequence for event in published} == set(range(1, 52))
    last = max(await read_reports(own_kafka, report_topic), key=lambda report: report.number)
    assert last.closes
    assert (last.seen, last.published, last.dropped, last.final) == (51, 51, {}, True)


async def test_started_without_kafka_it_publishes_when_kafka_comes(
    own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    events = own_kafka.create_topic(unique())
    report_topic = own_kafka.create_topic(unique())
    bucket = own_minio.create_bucket(unique())
    proxy_settings = make_proxy_settings(
        own_kafka, own_minio, bucket, kafka_topic=events, kafka_reports_topic=report_topic
    )
    await asyncio.to_thread(own_kafka.stop)
    async with start_captures(proxy_settings) as captures:
        assert hand_over(captures, 1)
        await until(captures.waits["kafka"], lambda why: why is not None, seconds=180)
        await asyncio.to_thread(own_kafka.start)
        await wait_until_published(captures, 1, seconds=180)
    assert len(await read_events(own_kafka, events)) == 1


async def test_stops_in_time_without_kafka_and_counts_the_lost(
    own_kafka: KafkaServer, own_minio: MinioServer
) -> None:
    bucket = own_minio.create_bucket(unique())
    proxy_settings = make_proxy_settings(
        own_kafka, own_minio, bucket, kafka_bootstrap_servers="127.0.0.1:9"
    )
    began = time.monotonic()
    async with start_captures(proxy_settings) as captures:
        for number in range(5):
            assert hand_over(captures, number)
        assert await captures.stop(0.5) == 5
    assert time.monotonic() - began < 60
