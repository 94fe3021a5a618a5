"""What a run needs: a database whose partition is half full, a topic with events, objects."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import obstore
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.servers.minio import S3

from inference_store.index import registrations
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import analyse, make_missing
from inference_store.index.writing import Indexable, rows_of, write
from inference_store.inference.events import Buckets, decode
from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import read_predictions, task_type_of

from .events import MODEL, Event

# The bucket that events name.
BUCKET = "bench"
_BATCH = 5000


async def fill(
    dsn: str,
    events: Iterable[Event],
    *,
    model_id: str = MODEL,
    keys: bool = True,
    bucket: str = BUCKET,
) -> None:
    """Index events without Kafka, and gather statistics; `keys`: their rows name objects."""
    engine = create_engine(dsn)
    dictionary = Dictionary(engine)
    waiting = iter(events)
    while some := list(islice(waiting, _BATCH)):
        await make_missing(engine, [event.received_at for event in some], target=5_000_000)
        items = await build_items(engine, some, model_id, keys=keys, bucket=bucket)
        model = items[0].registration.model
        names = {leaf.name for item in items for leaf in item.metadata.leaves}
        labels = {p.label for item in items for p in item.predictions.items or () if p.label}
        await dictionary.resolve({model: names}, {model: labels})
        async with engine.begin() as connection:
            now = datetime.now(UTC)
            await write(connection, [rows_of(i, dictionary, indexed_at=now) for i in items])
    await analyse(engine)
    await engine.dispose()


async def build_items(
    engine: AsyncEngine,
    some: Sequence[Event],
    model_id: str,
    *,
    keys: bool,
    bucket: str = BUCKET,
) -> list[Indexable]:
    buckets = Buckets(bucket, frozenset())
    now = datetime.now(UTC)
    decoded = [decode(e.message(inline=True), record_time=now, buckets=buckets) for e in some]
    changes: dict[str, Any] = {"model_id": model_id}
    if not keys:
        changes |= {"data": None, "response": None, "metadata": None}
    events = [replace(event, **changes) for event in decoded]
    async with engine.begin() as connection:
        registered = await registrations.register_missing(connection, {model_id: events[0]})
    registration = registered[model_id]
    kind = task_type_of("Object Detection")
    return [
        Indexable(
            event=event,
            registration=registration,
            metadata=read_metadata(event.inline_metadata),
            predictions=read_predictions(event.inline_response, task_type=kind),
        )
        for event in events
    ]


async def publish(servers: str, topic: str, messages: Iterable[bytes]) -> None:
    """Put every event on the topic before the clock starts."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, linger_ms=20, max_batch_size=256 * 1024, compression_type="lz4"
    )
    await producer.start()
    for message in messages:
        await producer.send(topic, message)
    await producer.stop()


def open_store(minio: S3, bucket: str) -> S3Store:
    """A client for one bucket."""
    return S3Store(
        bucket,
        endpoint=minio.endpoint,
        access_key_id=minio.access_key,
        secret_access_key=minio.secret_key,
        region=minio.region,
        client_options={"allow_http": True},
    )


def put_blobs(store: S3Store, events: Iterable[Event], *, data: bytes | None = None) -> None:
    """Two objects an event, by threads; with `data` its datum too."""

    def put(event: Event) -> None:
        if data is not None:
            obstore.put(store, event.key("data"), data)
        obstore.put(store, event.key("metadata"), event.metadata)
        obstore.put(store, event.key("response"), event.response)

    with ThreadPoolExecutor(16) as threads:
        waiting = iter(events)
        while some := list(islice(waiting, 2000)):
            list(threads.map(put, some))
