"""Exchanges captured to a real S3 and a real Kafka, read by a consumer."""

import asyncio
import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OutOfOrderSequenceNumber

from inference_store.inference.events import decode
from inference_store.inference.json_text import read_json
from inference_store.inference.metadata import read_metadata
from inference_store.objects import Blobs
from inference_store.proxy.capture.publisher import Publisher
from tests.exchanges import png, rebuild_messages
from tests.servers.kafka import Kafka
from tests.servers.minio import S3

from . import servers

LIMIT = 1 << 20


async def test_blobs_events_and_reports_arrive(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: servers.Topic
) -> None:
    events, report_topic = topic(3), topic(1)
    proxy_settings = servers.make_proxy_settings(
        kafka_server, minio_server, bucket, kafka_topic=events, kafka_reports_topic=report_topic
    )
    async with servers.start_captures(proxy_settings) as captures:
        for number in range(20):
            assert servers.hand_over(captures, number, images=2)
        await servers.wait_until_published(captures, 20)
    published = await servers.read_events(kafka_server, events)
    assert len(published) == 40
    assert {item.producer for item in published} == {captures.producer}
    assert sorted(item.sequence for item in published) == sorted([*range(1, 21)] * 2)
    (last,) = [
        report for report in await servers.read_reports(kafka_server, report_topic) if report.final
    ]
    assert last.closes
    assert (last.seen, last.published, last.events, last.highest_sequence) == (20, 20, 40, 20)
    requests: dict[str, Any] = {}
    with Blobs(proxy_settings) as blobs:
        for item in published:
            event = decode(item.value, record_time=datetime.now(UTC), buckets=blobs.buckets)
            assert event.flags == ()
            assert item.key == f"detector/{event.inference_id}"
            assert event.published_at is not None
            assert event.data is not None
            assert event.response is not None
            assert event.metadata is not None
            data = blobs.get(event.data, limit=LIMIT)
            assert data == png()
            assert event.extras.data_hash == hashlib.sha256(data).hexdigest()
            assert blobs.get(event.response, limit=LIMIT) == event.inline_response
            blob = blobs.get(event.metadata, limit=LIMIT)
            entries = read_metadata(blob).entries
            assert entries == read_metadata(event.inline_metadata).entries
            assert [(entry.key, entry.value) for entry in entries] == [("camera", "hall")]
            requests[event.inference_id] = read_json(blob)["request"]
    for number in range(20):
        first, second = (requests[f"frame-{number}-{index}"] for index in (0, 1))
        again = rebuild_messages(first["messages"], {0: png(), 1: png()}, {1: second["parts"]})
        assert again == [servers.request_body(number, 2)]


async def test_publishes_events_without_a_topic_of_reports(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: servers.Topic
) -> None:
    events = topic(1)
    proxy_settings = servers.make_proxy_settings(
        kafka_server, minio_server, bucket, kafka_topic=events, kafka_reports_topic="no topic"
    )
    async with servers.start_captures(proxy_settings) as captures:
        assert servers.hand_over(captures, 1)
        await servers.wait_until_published(captures, 1)
        await captures.stop(2)  # nobody takes its final report
    assert len(await servers.read_events(kafka_server, events)) == 1


@pytest.mark.real_kafka
async def test_reports_continue_after_a_gap_in_sequence_numbers(
    kafka_server: Kafka, minio_server: S3, topic: servers.Topic
) -> None:
    """aiokafka numbers a batch, and may drop it if its partition has no leader for long: the broker
    then refuses all later batches."""
    name = topic(1)
    publisher = Publisher(
        servers.make_proxy_settings(kafka_server, minio_server, "any", kafka_reports_topic=name)
    )
    try:
        await publisher.report(b"a", b"1")
        assert publisher._producer is not None
        manager = publisher._producer._txn_manager
        manager.increment_sequence_number(TopicPartition(name, 0), 1)
        with pytest.raises(OutOfOrderSequenceNumber):
            await asyncio.wait_for(publisher.report(b"a", b"2"), 300)
        await asyncio.wait_for(publisher.report(b"a", b"3"), 300)
    finally:
        await publisher.close()
