"""Exchanges on a real S3 and a real Kafka: what a consumer finds."""

import hashlib
from datetime import UTC, datetime
from typing import Any

from inference_store.inference.events import decode
from inference_store.inference.json_text import read_json
from inference_store.inference.metadata import read_metadata
from inference_store.objects import Blobs
from inference_store.proxy.capture.kept_request import rebuilt
from tests.exchanges import png
from tests.servers.kafka import Kafka
from tests.servers.minio import S3

from .servers import (
    Topic,
    arrived,
    hand_over,
    published,
    reports,
    request_body,
    running,
    settings,
)

LIMIT = 1 << 20


async def test_blobs_events_and_reports_arrive(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: Topic
) -> None:
    events, told = topic(3), topic(1)
    made = settings(
        kafka_server, minio_server, bucket, kafka_topic=events, kafka_reports_topic=told
    )
    async with running(made) as captures:
        for number in range(20):
            assert hand_over(captures, number, images=2)
        await published(captures, 20)
    found = await arrived(kafka_server, events)
    assert len(found) == 40
    assert {each.producer for each in found} == {captures.producer}
    assert sorted(each.sequence for each in found) == sorted([*range(1, 21)] * 2)
    (last,) = [each for each in await reports(kafka_server, told) if each.final]
    assert last.closes
    assert (last.seen, last.published, last.events, last.highest_sequence) == (20, 20, 40, 20)
    requests: dict[str, Any] = {}
    with Blobs(made) as blobs:
        for each in found:
            event = decode(each.value, record_time=datetime.now(UTC), buckets=blobs.buckets)
            assert event.flags == ()
            assert each.key == f"detector/{event.inference_id}"
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
        again = rebuilt(first, {0: png(), 1: png()}, {1: second["parts"]})
        assert again == [request_body(number, 2)]


async def test_a_topic_of_reports_that_is_missing_harms_no_event(
    kafka_server: Kafka, minio_server: S3, bucket: str, topic: Topic
) -> None:
    events = topic(1)
    made = settings(
        kafka_server, minio_server, bucket, kafka_topic=events, kafka_reports_topic="no topic"
    )
    async with running(made) as captures:
        assert hand_over(captures, 1)
        await published(captures, 1)
    assert len(await arrived(kafka_server, events)) == 1
