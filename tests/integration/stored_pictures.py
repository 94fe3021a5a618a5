"""Pictures of every task type, stored as the ingester writes them, with their blobs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import read_predictions, task_type_of
from inference_store.objects import Blobs
from tests.console.pictures import HEIGHT, WIDTH, make_png

from .stored_inferences import NewInference, at, store

MODEL: Final = "street-detector"
BIG: Final = 123456789012345678901234567890
DETECTIONS: Final = 6


@dataclass(frozen=True, slots=True)
class NewPicture:
    """An inference to store, with its data and response. `ok` False: without a response."""

    name: str
    task_type: str
    elements: Any
    data: bytes | None
    metadata: tuple[tuple[str, str, str], ...] = ()
    ok: bool = True


def list_pictures() -> Iterator[NewPicture]:
    """Yield pictures with boxes, a contour, keypoints, an oriented box; and what is none."""
    for number in range(DETECTIONS):
        box = {"xmin": 10 + number, "ymin": 20, "xmax": 110, "ymax": 70.5}
        elements = [{"label": "person", "score": number / 10, **box}]
        if number % 2:
            elements.append({"label": "car", "score": 0.5, **box | {"xmax": 2 * WIDTH}})
        metadata = (
            ("frame_number", "int", str(BIG + number)),
            ("price", "float", "0.1000000000000000000001" if number else "0.10"),
            ("speed", "float" if number % 2 else "string", str(number)),
            ('a "key" of none', "float", "NaN"),
        )
        yield NewPicture(
            f"street-{number}", "Object Detection", elements, make_png(number), metadata
        )
    contour = [[[20, 20], [120, 20], [120, 140], [-20, 140]], [[150, 20], [160, 20], [160, 30]]]
    cell = {"label": "cell", "score": 0.8, "contour": contour}
    pose = {"label": "person", "score": 0.7, "keypoints": [[30, 40, 0.9], [0, 0, 0], [60, 90, 0.4]]}
    turned = {"label": "ship", "score": 0.9, "cx": 0.5, "cy": 0.5, "w": 0.25, "h": 0.5, "r": 0.5}
    scored = {"label": "cat", "score": 0.75}
    yield NewPicture("cells", "Image Segmentation", [cell], make_png(90))
    yield NewPicture("pose", "keypoint_detection", [pose], make_png(91))
    yield NewPicture("ship", "Oriented Object Detection", [turned], make_png(92))
    yield NewPicture("pet", "Image Classification", [scored], make_png(93))
    yield NewPicture("failed", "Object Detection", [], make_png(94), ok=False)
    yield NewPicture("words", "Object Detection", [], b"no picture")
    yield NewPicture("gone", "Object Detection", [], None)


async def store_pictures(engine: AsyncEngine, blobs: Blobs, bucket: str) -> list[NewInference]:
    """Store all of them, the first one received first."""
    inferences = [
        _put(blobs, bucket, number, picture) for number, picture in enumerate(list_pictures())
    ]
    await store(engine, *inferences)
    return inferences


def _put(blobs: Blobs, bucket: str, number: int, picture: NewPicture) -> NewInference:
    response = json.dumps(picture.elements).encode()
    contents = {"data": picture.data, "response": response if picture.ok else None}
    for kind, content in contents.items():
        if content is not None:
            blobs.put(StorageKey(bucket, f"{number}/{kind}"), content, content_type="image/png")
    predictions = read_predictions(
        contents["response"],
        task_type=task_type_of(picture.task_type),
        width=WIDTH,
        height=HEIGHT,
        ok=picture.ok,
    )
    return NewInference(
        picture.name,
        at(number),
        picture.metadata,
        predictions.items,
        extras=Extras(task_type=picture.task_type, width=WIDTH, height=HEIGHT, ok=picture.ok),
        keys=(f"{bucket}/{number}/data", f"{bucket}/{number}/response", None),
        model_id=MODEL,
        flags=predictions.flags,
    )
