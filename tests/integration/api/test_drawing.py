"""Predictions as shapes over a picture."""

import json
import math
from typing import Any

import pytest
from sqlalchemy import func, update

from inference_store.index.tables import inference
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction, read_predictions, task_type_of
from tests.integration.stored_inferences import NewInference

from .conftest import Api

_PATH = "/v1/models/model/inferences"
_CORNERS: dict[str, Any] = {"xmin": 80.0, "ymin": 40.0, "xmax": 120.0, "ymax": 90.0}
_CONTOUR = [[[1, 1], [5, 1], [5, 5]], [[9, 9], [12, 9], [12, 12]]]


async def _draw(api: Api, name: str = "one") -> dict[str, Any]:
    return dict(await api.read(f"{_PATH}/{name}/drawing"))


async def test_boxes(api: Api) -> None:
    box = Prediction(0, 1, 0, label="person", score=0.9, **_CORNERS)
    extras = Extras(task_type="object_detection", width=640, height=480)
    await api.store(NewInference("one", predictions=[box, ("no box", 0.5)], extras=extras))
    drawing = await _draw(api)
    assert (drawing["width"], drawing["height"], drawing["units"]) == (640, 480, "pixels")
    assert (drawing["without_shape"], drawing["problem"]) == (1, None)
    [shape] = drawing["shapes"]
    assert (shape["kind"], shape["label"], shape["score"]) == ("box", "person", 0.9)
    assert shape["points"] == [[80, 40], [120, 40], [120, 90], [80, 90]]
    assert shape["box"] == _CORNERS
    corners: dict[str, Any] = {"xmin": 0.1, "ymin": 0.1, "xmax": 0.2, "ymax": 0.2}
    box = Prediction(0, 1, 0, label="person", score=0.9, **corners)
    await api.store(NewInference("shares", predictions=[box], flags=("box_in_shares",)))
    drawing = await _draw(api, "shares")
    assert (drawing["width"], drawing["units"]) == (None, "shares")
    await api.read(f"{_PATH}/unknown/drawing", status=404)


async def test_oriented_box(api: Api) -> None:
    turned: dict[str, Any] = {"cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.2, "angle": math.pi / 2}
    box = Prediction(0, 1, 0, label="ship", score=0.9, **turned)
    # 40 by 20 pixels, turned to stand upright
    corners = [pytest.approx(corner) for corner in ([110, 30], [110, 70], [90, 70], [90, 30])]
    for name, width, height, points in (("sized", 200, 100, corners), ("unsized", None, None, [])):
        extras = Extras(task_type="oriented_object_detection", width=width, height=height)
        await api.store(NewInference(name, predictions=[box], extras=extras))
        [shape] = (await _draw(api, name))["shapes"]
        assert (shape["kind"], shape["oriented"]) == ("oriented_box", turned)
        assert shape["points"] == points, name


async def _store_outlined(api: Api, task_type: str, **outline: Any) -> None:
    response = json.dumps([{"label": "x", "score": 0.5, **outline}]).encode()
    predictions = read_predictions(response, task_type=task_type_of(task_type)).items
    keys = (None, api.put_blob("answer", response), None)
    extras = Extras(task_type=task_type)
    await api.store(NewInference("one", predictions=predictions, extras=extras, keys=keys))


async def test_contours_are_complete(api: Api) -> None:
    await _store_outlined(api, "image_segmentation", contour=_CONTOUR)
    drawing = await _draw(api)
    shapes = drawing["shapes"]
    assert [(shape["kind"], shape["ordinal"]) for shape in shapes] == [("polygon", 0)] * 2
    assert [shape["points"] for shape in shapes] == _CONTOUR
    assert (drawing["problem"], shapes[0]["box"]["xmax"]) == (None, 12)


async def test_keypoints(api: Api) -> None:
    points = [[1, 2, 0.5], [0, 0, 0], [4, 6, 1]]
    await _store_outlined(api, "keypoint_detection", keypoints=points)
    [shape] = (await _draw(api))["shapes"]
    assert (shape["kind"], shape["points"]) == ("keypoints", [[1, 2], [4, 6]])
    assert shape["keypoints"] == [
        {"index": 0, "name": None, "score": 0.5},
        {"index": 2, "name": None, "score": 1},
    ]


async def test_falls_back_to_boxes_without_the_response(api: Api) -> None:
    """The answer is no error, and says what is missing and why."""
    await _store_outlined(api, "image_segmentation", contour=_CONTOUR)
    large = api.put_blob("large", b" " * (4 * 1024 * 1024 + 1))
    broken = api.put_blob("broken", b"[{")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"response_storage_key": None}, "is not stored"),
        ({"response_storage_key": f"s3://{api.bucket}/nothing"}, "is not in the bucket"),
        ({"response_storage_key": f"s3://{large}"}, "is over"),
        ({"response_storage_key": f"s3://{broken}"}, "no contours or keypoints"),
        ({"response_deleted_at": func.now()}, "has been deleted"),
    ]
    for changes, problem in cases:
        await api.execute(update(inference).values(changes))
        drawing = await _draw(api)
        assert problem in drawing["problem"]
        assert [shape["kind"] for shape in drawing["shapes"]] == ["box"], problem
