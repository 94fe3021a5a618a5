"""A Kafka producer that has become useless is closed, and nothing waits for it for ever."""

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OutOfOrderSequenceNumber, ProducerClosed

from inference_store.proxy.capture.publisher import Publisher
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka, KafkaServer
from tests.servers.minio import S3

from .servers import make_proxy_settings

pytestmark = pytest.mark.real_kafka


@pytest.mark.faults
async def test_closing_a_producer_fails_its_waiting_reports(
    own_kafka: KafkaServer, minio_server: S3
) -> None:
    topic = own_kafka.create_topic(unique())
    publisher = Publisher(
        make_proxy_settings(own_kafka, minio_server, "any", kafka_reports_topic=topic)
    )
    await publisher.report(b"a", b"1")
    await asyncio.to_thread(own_kafka.stop)
    waiting = asyncio.create_task(publisher.report(b"a", b"2"))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    await publisher.close()
    with pytest.raises(ProducerClosed):
        await asyncio.wait_for(waiting, 60)


async def test_reports_continue_after_a_gap_in_sequence_numbers(
    kafka_server: Kafka, minio_server: S3
) -> None:
    """aiokafka numbers a batch, and may drop it if its partition has no leader for long: the broker
    then refuses all later batches."""
    topic = kafka_server.create_topic(unique())
    publisher = Publisher(
        make_proxy_settings(kafka_server, minio_server, "any", kafka_reports_topic=topic)
    )
    try:
        await publisher.report(b"a", b"1")
        assert publisher._producer is not None
        manager = publisher._producer._txn_manager
        manager.increment_sequence_number(TopicPartition(topic, 0), 1)
        with pytest.raises(OutOfOrderSequenceNumber):
            await asyncio.wait_for(publisher.report(b"a", b"2"), 60)
        await asyncio.wait_for(publisher.report(b"a", b"3"), 60)
    finally:
        await publisher.close()
