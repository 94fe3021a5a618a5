"""What a run needs: a database whose partition is half full, a topic with events, objects."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice

import obstore
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store

from inference_store.store import registrations
from inference_store.store.database import create_engine
from inference_store.store.dictionary import Dictionary
from inference_store.store.events import Buckets, decode
from inference_store.store.indexing import Indexable, rows_of, write
from inference_store.store.metadata import read_metadata
from inference_store.store.partitions import analyse, make_missing
from inference_store.store.task_types import read_predictions, task_type_of

from .events import DAY, Made, made

_BATCH = 5000


async def fill(dsn: str, count: int) -> None:
    """Index `count` events without Kafka, and gather statistics."""
    engine = create_engine(dsn)
    dictionary = Dictionary(engine)
    await make_missing(engine, [DAY], target=5_000_000)
    events = made(0, count)
    while some := list(islice(events, _BATCH)):
        items = await _items(dsn, some)
        model = items[0].registration.model
        names = {leaf.name for item in items for leaf in item.metadata.leaves}
        labels = {p.label for item in items for p in item.predictions.items or () if p.label}
        await dictionary.resolve({model: names}, {model: labels})
        async with engine.begin() as connection:
            now = datetime.now(UTC)
            await write(connection, [rows_of(i, dictionary, indexed_at=now) for i in items])
    await analyse(engine)
    await engine.dispose()


async def _items(dsn: str, some: Sequence[Made]) -> list[Indexable]:
    buckets = Buckets("bench", frozenset())
    now = datetime.now(UTC)
    events = [decode(e.message(inline=True), record_time=now, buckets=buckets) for e in some]
    engine = create_engine(dsn)
    async with engine.begin() as connection:
        known = await registrations.register_missing(connection, {events[0].model_id: events[0]})
    await engine.dispose()
    registration = known[events[0].model_id]
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


def put_blobs(store: S3Store, events: Iterable[Made]) -> None:
    """Two objects an event, by threads."""

    def put(event: Made) -> None:
        obstore.put(store, event.key("metadata"), event.metadata)
        obstore.put(store, event.key("response"), event.response)

    with ThreadPoolExecutor(16) as threads:
        waiting = iter(events)
        while some := list(islice(waiting, 2000)):
            list(threads.map(put, some))
