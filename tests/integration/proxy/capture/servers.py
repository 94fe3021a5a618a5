"""Settings for real servers, exchanges handed over, and what came out on the other side."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiokafka import AIOKafkaConsumer

from inference_store.inference.producer_reports import ProducerReport, decode
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.rules import Rules
from tests.exchanges import detection, exchange, png
from tests.polling import until
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.settings import make_settings

LIST = [{"key": "camera", "type": "string", "value": "hall"}]


def settings(kafka: Kafka, s3: S3, bucket: str, **changes: Any) -> ProxySettings:
    """A proxy's settings, in which all is quick."""
    values: dict[str, Any] = {
        "kafka_bootstrap_servers": kafka.bootstrap_servers,
        "s3_endpoint": s3.endpoint,
        "s3_access_key": s3.access_key,
        "s3_secret_key": s3.secret_key,
        "s3_region": s3.region,
        "s3_bucket": bucket,
        "s3_timeout_seconds": 2,
        "proxy_upstream": "http://up",
        "proxy_capture_priority": "normal",
        "proxy_report_seconds": 0.5,
        "proxy_retry_seconds": 0.1,
        **changes,
    }
    return make_settings(ProxySettings, **values)


@asynccontextmanager
async def running(made: ProxySettings) -> AsyncIterator[Captures]:
    """Captures that run, and are stopped."""
    captures = Captures(made)
    await captures.start()
    try:
        yield captures
    finally:
        await captures.stop(20)


CALL = Call(PROTOCOLS["v2"], "infer", model="detector")


def request_body(number: int, images: int = 1) -> bytes:
    """What a caller sends: images in base64, each with its metadata."""
    inputs = [
        {
            "name": f"image-{index}",
            "datatype": "BYTES",
            "shape": [1],
            "data": [base64.b64encode(png(4, 3)).decode()],
            "parameters": {"metadata": LIST},
        }
        for index in range(images)
    ]
    return orjson.dumps({"id": f"frame-{number}", "inputs": inputs})


def hand_over(captures: Captures, number: int, *, images: int = 1) -> bool:
    """One exchange; whether it was taken."""
    body = request_body(number, images)
    ticket = captures.begin(len(body))
    if ticket is None:
        return False
    found = {"name": "found", "datatype": "BYTES", "shape": [1], "data": [[detection(0.9)]]}
    made = exchange(body, orjson.dumps({"model_name": "detector", "outputs": [found] * images}))
    ticket.finish(made, CALL, Rules(task_type="object_detection"), "detector")
    return True


@dataclass(frozen=True, slots=True)
class Arrived:
    """One event, as a consumer has it."""

    producer: str
    sequence: int
    key: str
    value: bytes

    @property
    def event(self) -> dict[str, Any]:
        """The event."""
        found: dict[str, Any] = orjson.loads(self.value)
        return found


async def arrived(kafka: Kafka, topic: str) -> list[Arrived]:
    """All that is on a topic now."""
    found: list[Arrived] = []
    async for record in _records(kafka, topic):
        headers = {name: value.decode() for name, value in record.headers}
        sequence = int(headers["sequence"])
        found.append(Arrived(headers["producer"], sequence, record.key.decode(), record.value))
    return found


async def reports(kafka: Kafka, topic: str) -> list[ProducerReport]:
    """All reports on a topic now."""
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
        places = consumer.assignment()
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < end for place, end in ends.items()]):
            batches = await consumer.getmany(timeout_ms=200)
            for records in batches.values():
                for record in records:
                    yield record
    finally:
        await consumer.stop()


async def published(captures: Captures, count: int, *, seconds: float = 180) -> None:
    """Wait until so many exchanges are published, and none is queued."""

    async def ask() -> tuple[int, int]:
        return captures.published, captures.queued

    await until(ask, lambda found: found == (count, 0), seconds=seconds)


async def folder_names(path: "os.PathLike[str]") -> Sequence[str]:
    """What is in a folder."""
    return await asyncio.to_thread(os.listdir, path)


Topic = Callable[..., str]
