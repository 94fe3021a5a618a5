"""Events as a camera's detector sends them: made, indexed, published, and their objects put."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import obstore
import orjson
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.producer import KINDS
from tests.servers.minio import S3

from inference_store.index import registrations, segments
from inference_store.index.database import create_engine
from inference_store.index.dictionary import Dictionary
from inference_store.index.partitions import analyse, make_missing
from inference_store.index.writing import Indexable, build_deltas, rows_of, write, write_deltas
from inference_store.inference.events import Buckets, decode, encode
from inference_store.inference.layout import Kind, Member, key_of, packed_capture_id, segment_key
from inference_store.inference.metadata import read_metadata
from inference_store.inference.tar import END, SUFFIXES, make_header, pad
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.proxy.capture.segments import uuid7

from .servers import BUCKET

# One partition: a day that lies behind us, so that nothing is in the future.
DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
MODEL = "street-detector"
_BATCH = 5000
_LABELS = ("person", "car", "bicycle", "dog", "bus", "truck", "cat", "bench")


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and the two blobs that the index needs."""

    number: int
    received_at: datetime
    capture_id: UUID
    metadata: bytes
    response: bytes
    model_id: str = MODEL
    # where its blobs are in a segment, and what its event says of that; None: in objects
    members: Mapping[Kind, Member] | None = None
    segment: Mapping[str, Any] = field(default_factory=dict)

    def key(self, kind: Kind) -> str:
        if self.members is not None:
            return str(self.members.get(kind, ""))
        return key_of("captures", self.model_id, self.received_at, self.capture_id, kind)

    def message(self, *, inline: bool) -> bytes:
        """The event; `inline`: with both blobs in it, as their text."""
        blobs = {"metadata": self.metadata.decode(), "response": self.response.decode()}
        return encode(
            model_id=self.model_id,
            inference_id=f"frame-{self.number}",
            received_at=self.received_at,
            forwarded_at=self.received_at + timedelta(milliseconds=1),
            responded_at=self.received_at + timedelta(milliseconds=21),
            published_at=self.received_at + timedelta(milliseconds=25),
            data_storage_key=self.key("data"),
            inference_storage_key=self.key("response"),
            metadata_storage_key=self.key("metadata"),
            capture_id=str(self.capture_id),
            task_type="Object Detection",
            ok=True,
            http_status=200,
            data_size=48_211,
            width=1280,
            height=720,
            **self.segment,
            **(blobs if inline else {}),
        )

    def make_document(self) -> bytes:
        """The metadata blob as our proxy writes it: with the event, as a rebuild reads it."""
        event = orjson.loads(self.message(inline=False))
        metadata = orjson.loads(self.metadata)
        return orjson.dumps({"metadata": metadata, "event": event, "request": {"id": "x"}})


def make_events(first: int, count: int) -> Iterator[Event]:
    """Events with numbers from `first` on, 10 ms apart: ten metadata keys, three predictions."""
    for number in range(first, first + count):
        rng = random.Random(number)
        yield Event(
            number=number,
            received_at=DAY + timedelta(milliseconds=10 * number, microseconds=number % 1000),
            capture_id=UUID(int=rng.getrandbits(128), version=4),
            metadata=_metadata(number, rng),
            response=_response(rng),
        )


def _metadata(number: int, rng: random.Random) -> bytes:
    values = (
        ("frame_number", "int", str(number)),
        ("latitude", "float", f"{rng.uniform(-60, 60):.5f}"),
        ("longitude", "float", f"{rng.uniform(-180, 180):.5f}"),
        ("exposure", "float", f"{rng.random():.4f}"),
        ("temperature", "float", f"{rng.gauss(15, 8):.1f}"),
        ("zoom", "int", str(rng.randint(1, 20))),
        ("data_source", "string", f"camera-{rng.randint(0, 200)}"),
        ("organization", "string", "city"),
        ("firmware", "string", f"4.{rng.randint(0, 9)}.{rng.randint(0, 30)}"),
        ("night", "bool", rng.choice(("true", "false"))),
    )
    return orjson.dumps([{"key": k, "type": t, "value": v} for k, t, v in values])


def _response(rng: random.Random) -> bytes:
    detections = []
    for _ in range(3):
        x, y = rng.uniform(0, 1200), rng.uniform(0, 650)
        box = {"xmin": x, "ymin": y, "xmax": x + rng.uniform(5, 80), "ymax": y + 40.5}
        detections.append({"label": rng.choice(_LABELS), "score": rng.random(), **box})
    output = {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": [detections]}
    return orjson.dumps({"model_name": MODEL, "id": "x", "outputs": [output]})


async def fill(
    dsn: str,
    events: Iterable[Event],
    *,
    model_ids: Sequence[str] = (MODEL,),
    keys: bool = True,
    bucket: str = BUCKET,
) -> None:
    """Index events without Kafka, one of each model in turn, and gather statistics; `keys`: their
    rows name objects."""
    engine = create_engine(dsn)
    dictionary = Dictionary(engine)
    waiting = iter(events)
    while some := list(islice(waiting, _BATCH)):
        await make_missing(engine, [event.received_at for event in some], target=5_000_000)
        for n, model_id in enumerate(model_ids):
            of_it = some[n :: len(model_ids)]
            await index_events(engine, dictionary, of_it, model_id, keys=keys, bucket=bucket)
    await analyse(engine)
    await engine.dispose()


async def index_events(
    engine: AsyncEngine,
    dictionary: Dictionary,
    some: Sequence[Event],
    model_id: str,
    *,
    keys: bool,
    bucket: str = BUCKET,
    count_keys: bool = False,
) -> None:
    """Write the rows of events; `count_keys`: and what the key registry counts of them."""
    items = await _build_items(engine, some, model_id, keys=keys, bucket=bucket)
    model = items[0].registration.model
    names = {leaf.name for item in items for leaf in item.metadata.leaves}
    labels = {p.label for item in items for p in item.predictions.items or () if p.label}
    await dictionary.resolve({model: names}, {model: labels})
    async with engine.begin() as connection:
        now = datetime.now(UTC)
        await write(connection, [rows_of(item, dictionary, indexed_at=now) for item in items])
        await segments.record(connection, [(item, True) for item in items])
        if count_keys:
            await write_deltas(connection, build_deltas(items, dictionary))


async def _build_items(
    engine: AsyncEngine, some: Sequence[Event], model_id: str, *, keys: bool, bucket: str
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
    kind = task_type_of("Object Detection")
    return [
        Indexable(
            event=event,
            registration=registered[model_id],
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
    """Return a client for one bucket."""
    return S3Store(
        bucket,
        endpoint=minio.endpoint,
        access_key_id=minio.access_key,
        secret_access_key=minio.secret_key,
        region=minio.region,
        client_options={"allow_http": True},
    )


class StoredObject(NamedTuple):
    """An object that was put; `version`: of a bucket that keeps them."""

    key: str
    version: str | None = None


def put_objects(
    store: S3Store, events: Iterable[Event], *, data: bytes | None = None
) -> list[StoredObject]:
    """Put metadata and responses in parallel; with `data` a datum of each event too."""

    def put(event: Event) -> list[StoredObject]:
        blobs: dict[Kind, bytes] = {"metadata": event.metadata, "response": event.response}
        if data is not None:
            blobs["data"] = data
        keys = [event.key(kind) for kind in blobs]
        answers = [obstore.put(store, *pair) for pair in zip(keys, blobs.values(), strict=True)]
        return [StoredObject(k, answer["version"]) for k, answer in zip(keys, answers, strict=True)]

    stored: list[StoredObject] = []
    with ThreadPoolExecutor(16) as threads:
        waiting = iter(events)
        while some := list(islice(waiting, 2000)):
            stored += [each for objects in threads.map(put, some) for each in objects]
    return stored


def put_segments(
    store: S3Store, events: Iterable[Event], *, data: bytes, members: int
) -> list[Event]:
    """Put events of one model as segments of so many; return them with their places there."""
    packed: list[Event] = []
    waiting = iter(events)
    while some := list(islice(waiting, members)):
        segment, tar, about = uuid7(), bytearray(), dict[str, Any]()
        key = segment_key("captures", some[0].model_id, some[0].received_at, segment)
        for ordinal, event in enumerate(some):
            places, at = dict[Kind, Member](), event.received_at.timestamp()
            capture = packed_capture_id(segment, ordinal, int(1000 * at))
            event = replace(event, capture_id=capture, members=places, segment=about)  # noqa: PLW2901
            for kind in KINDS:
                blob = {"data": data, "response": event.response}.get(kind) or event.make_document()
                tar += make_header(f"{capture}{SUFFIXES[kind]}", len(blob), int(at))
                places[kind] = Member(key, len(tar), len(blob))
                tar += blob + pad(len(blob))
            packed.append(event)
        tar += END
        about |= {"segment_members": len(some), "segment_bytes": len(tar)}
        about["segment_hash"] = sha256(tar).hexdigest()
        obstore.put(store, key, bytes(tar))
    return packed
