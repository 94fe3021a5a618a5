"""Predictions as shapes over a picture."""

import json
import math
from typing import Any

import httpx
import pytest
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import inference
from inference_store.inference.events import StorageKey
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction, read_predictions, task_type_of
from inference_store.objects import Blobs
from tests.integration.stored_inferences import NewInference, store

_ONE = "/v1/models/model/inferences/one"
_CORNERS: dict[str, Any] = {"xmin": 80.0, "ymin": 40.0, "xmax": 120.0, "ymax": 90.0}


async def _draw(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get(f"{_ONE}/drawing")
    assert answer.status_code == 200, answer.text
    drawing: dict[str, Any] = answer.json()
    return drawing


async def test_boxes(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    box = Prediction(0, 1, 0, label="person", score=0.9, **_CORNERS)
    extras = Extras(task_type="object_detection", width=640, height=480)
    await store(engine, NewInference("one", predictions=[box, ("no box", 0.5)], extras=extras))
    drawing = await _draw(client)
    assert (drawing["width"], drawing["height"], drawing["units"]) == (640, 480, "pixels")
    assert (drawing["without_shape"], drawing["problem"]) == (1, None)
    [shape] = drawing["shapes"]
    assert (shape["kind"], shape["label"], shape["score"]) == ("box", "person", 0.9)
    assert shape["points"] == [[80, 40], [120, 40], [120, 90], [80, 90]]
    assert shape["box"] == _CORNERS


async def test_boxes_in_shares(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    corners: dict[str, Any] = {"xmin": 0.1, "ymin": 0.1, "xmax": 0.2, "ymax": 0.2}
    box = Prediction(0, 1, 0, label="person", score=0.9, **corners)
    await store(engine, NewInference("one", predictions=[box], flags=("box_in_shares",)))
    drawing = await _draw(client)
    assert (drawing["width"], drawing["units"]) == (None, "shares")


@pytest.mark.parametrize("size", [(200, 100), (None, None)])
async def test_oriented_box(client: httpx.AsyncClient, engine: AsyncEngine, size: Any) -> None:
    turned: dict[str, Any] = {"cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.2, "angle": math.pi / 2}
    box = Prediction(0, 1, 0, label="ship", score=0.9, **turned)
    extras = Extras(task_type="oriented_object_detection", width=size[0], height=size[1])
    await store(engine, NewInference("one", predictions=[box], extras=extras))
    [shape] = (await _draw(client))["shapes"]
    assert (shape["kind"], shape["oriented"]) == ("oriented_box", turned)
    # 40 by 20 pixels, turned to stand upright
    corners = [[110, 30], [110, 70], [90, 70], [90, 30]]
    points = [pytest.approx(corner) for corner in corners]
    assert shape["points"] == (points if size[0] else [])


_OUTLINED: list[tuple[str, Any]] = [
    ("image_segmentation", {"contour": [[[1, 1], [5, 1], [5, 5]], [[9, 9], [12, 9], [12, 12]]]}),
    ("keypoint_detection", {"keypoints": [[1, 2, 0.5], [0, 0, 0], [4, 6, 1]]}),
]


async def _store_outlined(
    engine: AsyncEngine, blobs: Blobs, bucket: str, task_type: str, element: Any
) -> None:
    response = json.dumps([{"label": "x", "score": 0.5, **element}]).encode()
    blobs.put(StorageKey(bucket, "answer"), response, content_type="application/json")
    predictions = read_predictions(response, task_type=task_type_of(task_type)).items
    keys = (None, f"{bucket}/answer", None)
    extras = Extras(task_type=task_type)
    await store(engine, NewInference("one", predictions=predictions, extras=extras, keys=keys))


async def test_contours_are_complete(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store_outlined(engine, blobs, bucket, *_OUTLINED[0])
    drawing = await _draw(client)
    assert [shape["kind"] for shape in drawing["shapes"]] == ["polygon", "polygon"]
    assert [shape["points"] for shape in drawing["shapes"]] == _OUTLINED[0][1]["contour"]
    assert [shape["ordinal"] for shape in drawing["shapes"]] == [0, 0]
    assert (drawing["problem"], drawing["shapes"][0]["box"]["xmax"]) == (None, 12)


async def test_keypoints(
    client: httpx.AsyncClient, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    await _store_outlined(engine, blobs, bucket, *_OUTLINED[1])
    [shape] = (await _draw(client))["shapes"]
    assert (shape["kind"], shape["points"]) == ("keypoints", [[1, 2], [4, 6]])
    assert shape["keypoints"] == [
        {"index": 0, "name": None, "score": 0.5},
        {"index": 2, "name": None, "score": 1},
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"response_deleted_at": func.now()}, "has been deleted"),
        ({"response_storage_key": None}, "is not stored"),
        ({"response_storage_key": "s3://{bucket}/nothing"}, "is not in the bucket"),
        ({"response_storage_key": "s3://{bucket}/large"}, "is over"),
        ({"response_storage_key": "s3://{bucket}/broken"}, "no contours or keypoints"),
    ],
)
async def test_falls_back_to_boxes_without_the_response(
    client: httpx.AsyncClient,
    engine: AsyncEngine,
    blobs: Blobs,
    bucket: str,
    changes: dict[str, Any],
    problem: str,
) -> None:
    """The answer is no error, and says what is missing and why."""
    await _store_outlined(engine, blobs, bucket, *_OUTLINED[0])
    for name, content in (("large", b" " * (4 * 1024 * 1024 + 1)), ("broken", b"[{")):
        blobs.put(StorageKey(bucket, name), content, content_type="application/json")
    values = {k: v.format(bucket=bucket) if isinstance(v, str) else v for k, v in changes.items()}
    async with engine.begin() as connection:
        await connection.execute(update(inference).values(values))
    drawing = await _draw(client)
    assert problem in drawing["problem"]
    assert [shape["kind"] for shape in drawing["shapes"]] == ["box"]


async def test_unknown_inference(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    await store(engine, NewInference("other"))
    assert (await client.get(f"{_ONE}/drawing")).status_code == 404
