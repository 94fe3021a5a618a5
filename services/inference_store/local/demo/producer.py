"""A producer, as anyone could write it: three blobs to S3, then one event to Kafka."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath

import orjson
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store

from .captures import Blob, Capture

_NANOSECONDS = 1_000_000_000
Told = Callable[[], None]
"""Called after each event that is in Kafka."""


def publish_all(
    streams: list[Iterator[Capture]], blobs: S3Store, *, brokers: str, topic: str, told: Told
) -> None:
    """Publish every capture of every stream; the streams run beside each other."""
    asyncio.run(_publish_all(streams, blobs, brokers, topic, told))


async def _publish_all(
    streams: list[Iterator[Capture]], blobs: S3Store, brokers: str, topic: str, told: Told
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=brokers, acks="all")
    await producer.start()
    try:
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(_publish_stream(stream, blobs, producer, topic, told))
    finally:
        await producer.stop()


async def _publish_stream(
    stream: Iterator[Capture],
    blobs: S3Store,
    producer: AIOKafkaProducer,
    topic: str,
    told: Told,
) -> None:
    while (event := await asyncio.to_thread(_next_stored, stream, blobs)) is not None:
        key = f"{event['model_id']}/{event['inference_id']}".encode()
        await producer.send_and_wait(topic, orjson.dumps(event), key=key)
        told()


def _next_stored(stream: Iterator[Capture], blobs: S3Store) -> dict[str, str] | None:
    """Make the next capture and store its blobs; the event to publish, None at the end.

    Blobs before event: whoever reads the event finds them. A producer that dies in between leaves
    objects that nobody asks for, and feeds the same inference again the next time.
    """
    capture = next(stream, None)
    if capture is None:
        return None
    folder = f"demo/{capture.model_id}/{capture.inference_id}"
    return {
        "model_id": capture.model_id,
        "inference_id": capture.inference_id,
        "request_received_at": _time_text(capture.received_ns),
        "request_forwarded_at": _time_text(capture.forwarded_ns),
        "request_responded_at": _time_text(capture.responded_ns),
        "data_storage_key": _put(blobs, folder, capture.data),
        "inference_storage_key": _put(blobs, folder, capture.response),
        "metadata_storage_key": _put(blobs, folder, capture.metadata),
        "event_published_at": _time_text(time.time_ns()),
    }


def _put(blobs: S3Store, folder: str, blob: Blob) -> str:
    key = str(PurePosixPath(folder, blob.file))
    blobs.put(key, blob.content)
    return key


def _time_text(unix_ns: int) -> str:
    """RFC 3339 with nine digits, as Go's `time.Time` writes it."""
    seconds, rest = divmod(unix_ns, _NANOSECONDS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
