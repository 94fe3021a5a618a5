"""The events: ten metadata keys and three predictions each, as a camera's detector sends them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import orjson

from inference_store.inference.events import encode
from inference_store.inference.layout import Kind, key_of

# One partition: a day that lies behind us, so that nothing is in the future.
DAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
MODEL = "street-detector"
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

    def key(self, kind: Kind) -> str:
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
            **(blobs if inline else {}),
        )


def make_events(first: int, count: int) -> Iterator[Event]:
    """Events with numbers from `first` on, 10 ms apart."""
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
