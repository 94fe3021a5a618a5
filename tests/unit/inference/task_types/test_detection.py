"""Object detection: objects, tensors, legacy boxes."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.inference import task_types
from inference_store.inference.field_docs import field_docs
from inference_store.inference.task_types.response import Keypoint, Outline, Outlines

from .answers import find_items, list_columns, make_tensors, make_v2, read

BOX = ("xmin", "ymin", "xmax", "ymax", "area")


def detect(response: bytes, **more: Any) -> task_types.Predictions:
    return read("object_detection", response, **more)


def test_the_published_example_and_a_box_one_deeper() -> None:
    data = [
        {"label": "cat", "score": 0.6, "xmin": 7, "xmax": 17, "ymin": 50, "ymax": 77},
        {"label": "dog", "score": 0.2, "xmin": 12, "xmax": 21, "ymin": 17, "ymax": 71},
    ]
    for response in (
        make_v2(data),
        make_v2([data]),
        make_v2([json.dumps(detection) for detection in data]),
    ):
        predictions = read("OBJECT_DETECTION", response)
        assert list_columns(predictions, "label", "score", *BOX) == [
            ("cat", 0.6, 7, 50, 17, 77, 270),
            ("dog", 0.2, 12, 17, 21, 71, 486),
        ]
        assert predictions.flags == ()
    corners = {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 5}
    predictions = detect(make_v2([{"label": "cat", "score": 0.5, "box": corners}]))
    assert list_columns(predictions, *BOX) == [(1, 2, 3, 5, 6)]


def test_a_box_without_an_area_is_kept_and_flagged() -> None:
    for corners, flag in (
        ({"xmin": 1, "ymin": 2, "xmax": 3}, "box_incomplete"),
        ({"xmin": 3, "ymin": 2, "xmax": 1, "ymax": 5}, "box_inverted"),
        ({"xmin": "left", "ymin": 2, "xmax": 1, "ymax": 5}, "not_a_number"),
        ({"xmin": -1e308, "ymin": -1e308, "xmax": 1e308, "ymax": 1e308}, "not_finite"),
    ):
        predictions = detect(make_v2([{"label": "cat", "score": 0.5, **corners}]))
        [item] = find_items(predictions)
        assert (item.label, item.ymin, item.area) == ("cat", corners["ymin"], None)
        assert flag in predictions.flags, corners


def test_tensors_by_the_output_mapping() -> None:
    for form, numbers in (
        ("xyxy", [10, 20, 30, 60]),
        ("yxyx", [20, 10, 60, 30]),
        ("xywh", [10, 20, 20, 40]),
        ("cxcywh", [20, 40, 20, 40]),
    ):
        names = {"boxes": "b", "scores": "s", "labels": "c", "box_format": form}
        mapping = task_types.OutputMapping.model_validate(names)
        for boxes in (numbers, [numbers], [[numbers]]):
            response = make_tensors(c=[1], s=[0.5], b=boxes)
            predictions = detect(response, labels=("ant", "bee"), mapping=mapping)
            expected = [("bee", 0.5, 10, 20, 30, 60, 800)]
            assert list_columns(predictions, "label", "score", *BOX) == expected, form
            assert list_columns(predictions, "output", "output_name") == [(2, "b")]
    mapping = task_types.OutputMapping(boxes="b", class_probabilities="p", activation="softmax")
    response = make_tensors(b=[[0, 0, 1, 1], [0, 0, 2, 2]], p=[[[0, 5], [9, 0]]])
    predictions = detect(response, labels=("ant", "bee"), mapping=mapping)
    assert list_columns(predictions, "label") == [("bee",), ("ant",)]
    assert list_columns(predictions, "score")[0][0] == pytest.approx(0.9933, abs=1e-4)
    mapping = task_types.OutputMapping(boxes="b", scores="s", labels="c")
    response = make_tensors(b=[0, 0, 1, 1, 0, 0, 2, 2, 9], s=[0.5], c=["x", "y", "z"])
    predictions = detect(response, mapping=mapping)
    assert list_columns(predictions, "label", "score") == [("x", 0.5), ("y", None)]
    assert predictions.flags == ("tensor_mismatch",)


def test_shares_become_pixels_when_the_size_is_known() -> None:
    mapping = task_types.OutputMapping(boxes="b", units="shares")
    response = make_tensors(b=[0.25, 0.5, 0.75, 1])
    predictions = detect(response, mapping=mapping, size=(200, 100))
    assert list_columns(predictions, *BOX) == [(50, 50, 150, 100, 5000)]
    assert predictions.flags == ()


@pytest.mark.parametrize("size", [None, (0, 0)])
def test_shares_of_an_unknown_size_stay_as_given_without_area(size: Any) -> None:
    objects = make_v2([{"label": "a", "xmin": 0.25, "ymin": 0.5, "xmax": 0.75, "ymax": 1}])
    for response in (make_tensors(b=[0.25, 0.5, 0.75, 1]), objects):
        mapping = task_types.OutputMapping(boxes="b", units="shares")
        predictions = detect(response, mapping=mapping, size=size)
        assert list_columns(predictions, *BOX) == [(0.25, 0.5, 0.75, 1, None)]
        assert "box_in_shares" in predictions.flags


LEGACY: dict[str, Any] = {
    "detection_boxes": [[10, 20, 30, 60], [0, 0, 5, 5], [1, 1, 2, 2]],
    "detection_scores": [0.9, 0.8, 0.1],
    "detection_classes": ["cat", "dog", "dog"],
    "num_detections": 2,
}


def test_legacy_boxes_have_y_first_and_shares_are_assumed() -> None:
    for response in (
        make_tensors(**{**LEGACY, "num_detections": [2]}),
        make_v2([LEGACY]),
        make_v2([json.dumps(LEGACY)]),
        json.dumps(LEGACY).encode(),
        json.dumps({"predictions": [{**LEGACY, "num_detections": 2.0}]}).encode(),
        json.dumps({"outputs": {**LEGACY, "num_detections": [2]}}).encode(),
        make_tensors(
            detection_boxes=[[LEGACY["detection_boxes"][0], LEGACY["detection_boxes"][1]]],
            detection_scores=[[0.9, 0.8]],
            detection_classes=[["cat", "dog"]],
        ),
    ):
        predictions = detect(response)
        assert list_columns(predictions, "label", "score", *BOX) == [
            ("cat", 0.9, 20, 10, 60, 30, 800),
            ("dog", 0.8, 0, 0, 5, 5, 25),
        ]
    response = make_tensors(detection_boxes=[[0, 0.5, 1, 1]], detection_scores=[1])
    predictions = detect(response, size=(10, 10))
    assert list_columns(predictions, *BOX) == [(5, 0, 10, 10, 50)]
    assert predictions.flags == ("box_units_assumed",)
    mapped = detect(response, mapping=task_types.OutputMapping(units="pixels"))
    assert list_columns(mapped, *BOX) == [(0.5, 0, 1, 1, 0.5)]


def test_boxes_are_capped_and_a_mapping_refuses_what_it_does_not_know() -> None:
    response = make_tensors(b=[0, 0, 1, 1] * 20)
    mapping = task_types.OutputMapping(boxes="b")
    predictions = detect(response, mapping=mapping, caps=task_types.PredictionCaps(predictions=7))
    assert len(find_items(predictions)) == 7
    assert predictions.flags == ("predictions_capped",)
    with pytest.raises(ValidationError):
        task_types.OutputMapping.model_validate({"boxs": "b"})
    with pytest.raises(ValidationError):
        task_types.OutputMapping.model_validate({"box_format": "xxyy"})
    assert (
        field_docs(task_types.OutputMapping).keys() == task_types.OutputMapping.model_fields.keys()
    )


# Keypoints, and the outlines that only a drawing wants.
NAMED = [{"x": 1, "y": 2, "score": 0.5, "name": "nose"}, {"x": 4, "y": 6, "visible": True}]


def read_keypoint_outlines(response: bytes, task_type: str = "keypoint_detection") -> Outlines:
    return task_types.read_outlines(response, task_type=task_types.task_type_of(task_type))


def test_every_way_to_write_keypoints() -> None:
    for case, keypoints, expected in (
        ("named", NAMED, [(0, (1, 2), 0.5, "nose"), (1, (4, 6), 1.0, None)]),
        ("lists", [[1, 2], [4, 6, 0.25]], [(0, (1, 2), None, None), (1, (4, 6), 0.25, None)]),
        ("coco", [0, 0, 0, 1, 2, 2, 4, 6, 1], [(1, (1, 2), 2, None), (2, (4, 6), 1, None)]),
        ("columns", {"x": [1, 4], "y": [2, 6]}, [(0, (1, 2), None, None), (1, (4, 6), None, None)]),
        (
            "columns and scores",
            {"x": [1, 4], "y": [2, 6], "visible": [0.5, 1]},
            [(0, (1, 2), 0.5, None), (1, (4, 6), 1, None)],
        ),
    ):
        response = make_v2([{"label": "person", "score": 0.9, "keypoints": keypoints}])
        predictions = read("keypoint_detection", response)
        assert list_columns(predictions, "label", "score", *BOX) == [
            ("person", 0.9, 1, 2, 4, 6, 12)
        ]
        assert predictions.flags == (), case
        assert read_keypoint_outlines(response).found[0].keypoints == tuple(
            Keypoint(*point) for point in expected
        )


def test_keypoints_that_cannot_be_read_leave_the_label() -> None:
    for keypoints, flag in (
        (None, "keypoints_missing"),
        ("nose", "keypoints_missing"),
        ([[0, 0, 0]], "keypoints_missing"),
        ([{"x": 1}], "keypoint_unreadable"),
        ({"x": [1], "y": []}, "keypoint_unreadable"),
        ([[1, "up"]], "not_a_number"),
        ([[1, 2]] * 1001, "keypoints_capped"),
    ):
        predictions = read(
            "keypoint_detection", make_v2([{"label": "x", "score": 1, "keypoints": keypoints}])
        )
        assert list_columns(predictions, "label", "score") == [("x", 1)], keypoints
        assert flag in predictions.flags, keypoints
    box = {"xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}
    predictions = read("keypoints", make_v2([{"label": "x", "box": box, "keypoints": NAMED}]))
    assert list_columns(predictions, *BOX) == [(0, 0, 10, 10, 100)]


def test_contours_are_kept_whole_and_points_bounded() -> None:
    inner, outer = [[1, 1], [2, 1], [2, 2]], [[0, 0], [9, 0], [9, 9]]
    data = [{"label": "a", "contour": []}, {"label": "b", "contour": [outer, inner]}]
    kept_outlines = read_keypoint_outlines(make_v2(data), "image_segmentation").found
    assert list(kept_outlines) == [1]
    expected = tuple(tuple((x, y) for x, y in contour) for contour in (outer, inner))
    assert kept_outlines[1].contours == expected
    bounded = Outlines(most=5)
    triangle = Outline(contours=(((0, 0), (1, 1), (2, 2)),))
    point = Outline(keypoints=(Keypoint(0, (1, 1)),))
    for ordinal, outline in enumerate((triangle, triangle, point)):
        bounded.add(ordinal, outline)
    assert (list(bounded.found), bounded.points, bounded.capped) == ([0, 2], 4, True)
    for response in (b"", b"{", b"5", b'{"error": "x"}', b"[[[[[["):
        assert read_keypoint_outlines(response).found == {}
        assert read_keypoint_outlines(make_v2([{"label": "x"}]), "object_detection").found == {}


# Oriented boxes and contours.


def segment(contour: Any) -> task_types.Predictions:
    return read("image_segmentation", make_v2([{"label": "x", "score": 1, "contour": contour}]))


def test_the_published_oriented_and_segmentation_examples() -> None:
    data = [
        {"label": "cat", "score": 0.99, "cx": 0.5, "cy": 0.5, "w": 0.01, "h": 0.01, "r": 0.123},
        {"label": "dog", "score": 0.99, "cx": 0.3, "cy": 0.7, "w": 0.08, "h": 0.04, "r": -0.1},
    ]
    predictions = read("ORIENTED_OBJECT_DETECTION", make_v2(data))
    assert list_columns(predictions, "label", "cx", "cy", "w", "h", "angle", "area", "xmin") == [
        ("cat", 0.5, 0.5, 0.01, 0.01, 0.123, None, None),
        ("dog", 0.3, 0.7, 0.08, 0.04, -0.1, None, None),
    ]
    assert predictions.flags == ("size_unknown",)

    def line(first: float) -> list[dict[str, float]]:
        return [{"x": first, "y": first + 1}, {"x": first + 2, "y": first + 3}]

    data = [
        {"label": "cat", "score": 0.5, "contour": [line(1), line(5)]},
        {"label": "dog", "score": 0.75, "contour": [line(9), line(13)]},
    ]
    predictions = read("IMAGE_SEGMENTATION", make_v2(data))
    assert list_columns(predictions, "label", "score", "rank", *BOX) == [
        ("cat", 0.5, 2, 1, 2, 7, 8, 0),
        ("dog", 0.75, 1, 9, 10, 15, 16, 0),
    ]


def test_oriented_boxes_turn_in_pixel_space() -> None:
    box = {"label": "x", "score": 1, "cx": 0.5, "cy": 0.5, "w": 0.2, "h": 0.4}
    data = [{**box, "r": 0}, {**box, "r": math.pi / 2}, {**box, "r": math.pi / 6}]
    level, upright, tilted = find_items(
        read("oriented_object_detection", make_v2(data), size=(1000, 500))
    )
    assert [getattr(level, name) for name in BOX] == pytest.approx([400, 150, 600, 350, 40_000])
    assert [getattr(upright, name) for name in BOX] == pytest.approx([400, 150, 600, 350, 40_000])
    half = 100 * math.cos(math.pi / 6) + 100 * math.sin(math.pi / 6)
    assert (tilted.xmin, tilted.ymax) == pytest.approx((500 - half, 250 + half))
    assert (level.cx, level.w) == (0.5, 0.2)
    predictions = read(
        "oriented_object_detection", make_v2([{"label": "x", "cx": 0.5}, 7]), size=(9, 9)
    )
    assert list_columns(predictions, "label", "cx", "area") == [("x", 0.5, None)]
    assert predictions.flags == ("box_incomplete", "elements_unreadable")


SQUARE = [{"x": 0, "y": 0}, {"x": 2, "y": 0}, {"x": 2, "y": 2}, {"x": 0, "y": 2}]
TRIANGLE = [{"x": 10, "y": 10}, {"x": 10, "y": 14}, {"x": 13, "y": 10}]


def test_the_area_of_contours_is_their_sum() -> None:
    for contour in (
        [SQUARE, TRIANGLE],
        [list(reversed(SQUARE)), TRIANGLE],
        [[[p["x"], p["y"]] for p in SQUARE], [[[p["x"], p["y"]]] for p in TRIANGLE]],
    ):
        predictions = segment(contour)
        assert list_columns(predictions, *BOX) == [(0, 0, 13, 14, 10)], contour
        assert predictions.flags == (), contour
    predictions = segment(SQUARE)
    assert list_columns(predictions, *BOX) == [(0, 0, 2, 2, 4)]


def test_a_contour_that_cannot_be_read_leaves_the_label() -> None:
    for contour, flag in (
        (None, "contour_missing"),
        ([], "contour_missing"),
        ([[]], "contour_missing"),
        ("square", "contour_missing"),
        ([5], "contour_unreadable"),
        ([[{"x": 1}]], "contour_unreadable"),
        ([[{"x": 1, "y": "up"}, {"x": 1, "y": 1}]], "contour_unreadable"),
        ([[[]]], "contour_unreadable"),
        ([[{"x": -1e308, "y": -1e308}, {"x": 1e308, "y": 0}, {"x": 0, "y": 1e308}]], "not_finite"),
    ):
        predictions = segment(contour)
        assert list_columns(predictions, "label", "score") == [("x", 1)], contour
        assert flag in predictions.flags, contour
