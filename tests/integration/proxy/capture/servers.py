"""Settings for real servers, exchanges to hand over, and the events and reports that result."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer

from inference_store.inference.producer_reports import ProducerReport, decode
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.configuration import Rules, UpstreamEntry
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.routing import Route
from tests.exchanges import detection, exchange, png
from tests.polling import until
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.settings import make_settings

LIST = [{"key": "camera", "type": "string", "value": "hall"}]


def make_proxy_settings(kafka: Kafka, s3: S3, bucket: str, **changes: Any) -> ProxySettings:
    values: dict[str, Any] = {
        "kafka_bootstrap_servers": kafka.bootstrap_servers,
        **s3.settings,
        "s3_region": s3.region,
        "s3_bucket": bucket,
        "s3_timeout_seconds": 20,
        "proxy_upstream": "http://up",
        "proxy_report_seconds": 0.5,
        **changes,
    }
    return make_settings(ProxySettings, **values)


@asynccontextmanager
async def start_captures(proxy_settings: ProxySettings) -> AsyncIterator[Captures]:
    captures = Captures(proxy_settings, [RULES])
    await captures.start()
    try:
        yield captures
    finally:
        await captures.stop(120)


CALL = Call(PROTOCOLS["v2"], "infer", model="detector")
RULES = Rules(task_type="object_detection")
ROUTE = Route(UpstreamEntry(name="up", url="http://up"), CALL, RULES, "detector")


def hand_over(captures: Captures, number: int) -> bool:
    """Hand over one exchange of an image in base64; return whether it was accepted."""
    tensor = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [1],
        "data": [base64.b64encode(png(4, 3)).decode()],
        "parameters": {"metadata": LIST},
    }
    body = orjson.dumps({"id": f"frame-{number}", "inputs": [tensor]})
    reservation = captures.begin(len(body))
    if reservation is None:
        return False
    output = {"name": "found", "datatype": "BYTES", "shape": [1], "data": [[detection(0.9)]]}
    answer = orjson.dumps({"model_name": "detector", "outputs": [output]})
    reservation.finish(exchange(body, answer), ROUTE)
    return True


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    producer: str
    sequence: int
    key: str
    value: bytes

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = orjson.loads(self.value)
        return event


async def read_events(kafka: Kafka, topic: str) -> list[PublishedEvent]:
    events: list[PublishedEvent] = []
    async for record in _records(kafka, topic):
        headers = {name: value.decode() for name, value in record.headers}
        sequence = int(headers["sequence"])
        events.append(
            PublishedEvent(headers["producer"], sequence, record.key.decode(), record.value)
        )
    return events


async def read_reports(kafka: Kafka, topic: str) -> list[ProducerReport]:
    return [decode(record.value) async for record in _records(kafka, topic)]


async def _records(kafka: Kafka, topic: str) -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        partitions = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            batches = await consumer.getmany(timeout_ms=200)
            for records in batches.values():
                for record in records:
                    yield record
    finally:
        await consumer.stop()


async def wait_until_published(captures: Captures, count: int, *, seconds: float = 600) -> None:
    """Wait until `count` exchanges are published, and none is queued."""

    async def ask() -> tuple[int, int]:
        return captures.counts.published, captures.counts.queued

    await until(ask, lambda counts: counts == (count, 0), seconds=seconds)
