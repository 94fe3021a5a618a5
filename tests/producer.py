"""A producer like any other program: it writes three blobs, then the event of nine fields."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from obstore import put_async
from obstore.store import S3Store

from inference_store.inference.events import encode
from inference_store.inference.layout import Kind, Member, packed_capture_id, segment_key
from inference_store.inference.tar import END, SUFFIXES, make_header, pad
from inference_store.proxy.capture.segments import uuid7

KINDS: Final[tuple[Kind, ...]] = ("data", "response", "metadata")
START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Capture:
    number: int
    model_id: str = "people-detector"
    metadata: Sequence[dict[str, Any]] = ()
    predictions: Sequence[dict[str, Any]] = ()
    extras: dict[str, Any] = field(default_factory=dict)
    inference_id: str | None = None
    received_at: datetime | None = None
    prefix: str = "captures"
    data: bytes | None = None

    def key(self, kind: Kind) -> str:
        return f"{self.prefix}/{self.model_id}/{self.number}/{kind}"

    @property
    def blobs(self) -> dict[str, bytes]:
        response = {
            "outputs": [
                {
                    "name": "predictions",
                    "shape": [len(self.predictions)],
                    "datatype": "BYTES",
                    "data": [json.dumps(list(self.predictions))],
                }
            ]
        }
        return {
            self.key("data"): b"datum %d" % self.number if self.data is None else self.data,
            self.key("metadata"): json.dumps(list(self.metadata)).encode(),
            self.key("response"): json.dumps(response).encode(),
        }

    @property
    def event(self) -> bytes:
        received_at = self.received_at or START + timedelta(milliseconds=self.number)
        return encode(
            model_id=self.model_id,
            inference_id=self.inference_id or f"inference-{self.number}",
            received_at=received_at,
            forwarded_at=received_at + timedelta(milliseconds=1),
            responded_at=received_at + timedelta(milliseconds=11),
            published_at=received_at + timedelta(milliseconds=13),
            data_storage_key=self.key("data"),
            inference_storage_key=self.key("response"),
            metadata_storage_key=self.key("metadata"),
            **self.extras,
        )


def capture(number: int, **changes: Any) -> Capture:
    """Make a capture of a detection with typical metadata, varied by number."""
    values: dict[str, Any] = {
        "metadata": [
            {"key": "frame_number", "type": "int", "value": str(number)},
            {"key": "data_source", "type": "string", "value": f"camera-{number % 3}"},
            {"key": "exposure", "type": "float", "value": f"0.{number % 10}"},
            {"key": "night", "type": "bool", "value": "true" if number % 2 else "false"},
            {"key": "camera_position", "type": "json", "value": '{"angle": "10.5", "tilt": 1}'},
        ],
        "predictions": [
            {"label": label, "score": score, "xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22}
            for label, score in (("person", (number % 100) / 100), ("car", 0.5))
        ],
        "extras": {"task_type": "Object Detection"},
    }
    return Capture(number, **(values | changes))


@dataclass(frozen=True, slots=True)
class Segment:
    """Captures of one model in one object, as our proxy packs them."""

    key: str
    tar: bytes
    events: list[bytes]
    members: list[dict[Kind, Member]]


def pack(*captures: Capture, prefix: str = "captures") -> Segment:
    """Pack captures of one model. A metadata blob holds the event, as our proxy's does."""
    segment = uuid7()
    received = [
        each.received_at or START + timedelta(milliseconds=each.number) for each in captures
    ]
    key = segment_key(prefix, captures[0].model_id, received[0], segment)
    tar, events, members = b"", [], []
    for ordinal, (capture, at) in enumerate(zip(captures, received, strict=True)):
        id = packed_capture_id(segment, ordinal, int(at.timestamp() * 1000))
        blobs = dict(zip(("data", "metadata", "response"), capture.blobs.values(), strict=True))
        event = json.loads(capture.event) | {"capture_id": str(id), "metadata_storage_key": ""}
        there: dict[Kind, Member] = {}
        for kind in KINDS:
            blob = blobs[kind]
            if kind == "metadata":
                event["data_storage_key"] = str(there["data"])
                event["inference_storage_key"] = str(there["response"])
                document = {"metadata": json.loads(blob), "event": event, "request": {"id": "r"}}
                blob = json.dumps(document).encode()
            tar += make_header(f"{id}{SUFFIXES[kind]}", len(blob), int(at.timestamp()))
            there[kind] = Member(key, len(tar), len(blob))
            tar += blob + pad(len(blob))
        events.append(event | {"metadata_storage_key": str(there["metadata"])})
        members.append(there)
    tar += END
    whole = {
        "segment_members": len(captures),
        "segment_bytes": len(tar),
        "segment_hash": sha256(tar).hexdigest(),
    }
    return Segment(key, tar, [json.dumps(event | whole).encode() for event in events], members)


class Producer:
    def __init__(self, environment: dict[str, str], topic: str, **options: Any) -> None:
        """`options`: how S3 is reached, by default without TLS."""
        self._environment = environment
        self._options: Any = options or {"allow_http": True}
        self.topic = topic
        self._store = self._store_of(environment["INFERENCE_STORE_S3_BUCKET"])
        self._kafka: AIOKafkaProducer | None = None

    def _store_of(self, bucket: str) -> S3Store:
        environment = self._environment
        return S3Store(
            bucket,
            endpoint=environment["INFERENCE_STORE_S3_ENDPOINT"],
            access_key_id=environment["INFERENCE_STORE_S3_ACCESS_KEY"],
            secret_access_key=environment["INFERENCE_STORE_S3_SECRET_KEY"],
            region="us-east-1",
            client_options=self._options,
        )

    def use_bucket(self, bucket: str) -> "Producer":
        self._store = self._store_of(bucket)
        return self

    async def __aenter__(self) -> "Producer":
        servers = self._environment["INFERENCE_STORE_KAFKA_BOOTSTRAP_SERVERS"]
        # as long as a Kafka that a test has stopped may take to start again
        patience = {"request_timeout_ms": 300_000}
        self._kafka = AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, **patience)
        await self._kafka.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._kafka is not None:
            await self._kafka.stop()

    async def put(self, capture: Capture, *kinds: str) -> None:
        for key, data in capture.blobs.items():
            if not kinds or key.rsplit("/", 1)[1] in kinds:
                await put_async(self._store, key, data)

    async def put_bytes(self, key: str, data: bytes) -> None:
        await put_async(self._store, key, data)

    async def put_all(self, captures: Iterable[Capture], *kinds: str) -> None:
        """Write the objects of many captures, 16 at a time."""
        pending = iter(captures)

        async def work() -> None:
            for item in pending:
                await self.put(item, *kinds)

        await asyncio.gather(*(work() for _ in range(16)))

    async def publish(self, payload: bytes, **options: Any) -> None:
        if self._kafka is None:
            raise RuntimeError("not started")
        await self._kafka.send_and_wait(self.topic, payload, **options)

    async def publish_all(self, payloads: Iterable[bytes]) -> None:
        if self._kafka is None:
            raise RuntimeError("not started")
        for payload in payloads:
            await self._kafka.send(self.topic, payload)
        await self._kafka.flush()

    async def publish_at_once(self, payloads: Iterable[bytes]) -> None:
        """Publish messages to the first partition in one record batch: a consumer sees all of
        them, or none."""
        if self._kafka is None:
            raise RuntimeError("not started")
        batch = self._kafka.create_batch()
        for payload in payloads:
            if batch.append(key=None, value=payload, timestamp=None) is None:
                raise ValueError("they are more than one batch holds")
        await (await self._kafka.send_batch(batch, self.topic, partition=0))

    async def produce(self, *captures: Capture) -> None:
        await self.put_all(captures)
        await self.publish_all(item.event for item in captures)

    async def produce_packed(self, *captures: Capture) -> Segment:
        """Write captures of one model as one segment, and publish their events."""
        segment = pack(*captures)
        await self.put_bytes(segment.key, segment.tar)
        await self.publish_all(segment.events)
        return segment
