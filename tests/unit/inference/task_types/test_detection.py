"""Object detection: objects, tensors, legacy boxes."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.inference.field_docs import field_docs
from inference_store.inference.task_types import OutputMapping, PredictionCaps, Predictions

from .answers import find_items, list_columns, make_tensors, make_v2, read

BOX = ("xmin", "ymin", "xmax", "ymax", "area")


def detect(response: bytes, **more: Any) -> Predictions:
    return read("object_detection", response, **more)


def test_the_published_example() -> None:
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


def test_the_hugging_face_pipeline_has_its_box_one_deeper() -> None:
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
        mapping = OutputMapping.model_validate(names)
        for boxes in (numbers, [numbers], [[numbers]]):
            response = make_tensors(c=[1], s=[0.5], b=boxes)
            predictions = detect(response, labels=("ant", "bee"), mapping=mapping)
            expected = [("bee", 0.5, 10, 20, 30, 60, 800)]
            assert list_columns(predictions, "label", "score", *BOX) == expected, form
            assert list_columns(predictions, "output", "output_name") == [(2, "b")]


def test_shares_become_pixels_when_the_size_is_known() -> None:
    mapping = OutputMapping(boxes="b", units="shares")
    response = make_tensors(b=[0.25, 0.5, 0.75, 1])
    predictions = detect(response, mapping=mapping, size=(200, 100))
    assert list_columns(predictions, *BOX) == [(50, 50, 150, 100, 5000)]
    assert predictions.flags == ()


@pytest.mark.parametrize("size", [None, (0, 0)])
def test_shares_of_an_unknown_size_stay_as_given_without_area(size: Any) -> None:
    objects = make_v2([{"label": "a", "xmin": 0.25, "ymin": 0.5, "xmax": 0.75, "ymax": 1}])
    for response in (make_tensors(b=[0.25, 0.5, 0.75, 1]), objects):
        mapping = OutputMapping(boxes="b", units="shares")
        predictions = detect(response, mapping=mapping, size=size)
        assert list_columns(predictions, *BOX) == [(0.25, 0.5, 0.75, 1, None)]
        assert "box_in_shares" in predictions.flags


def test_class_scores_of_each_box() -> None:
    mapping = OutputMapping(boxes="b", class_probabilities="p", activation="softmax")
    response = make_tensors(b=[[0, 0, 1, 1], [0, 0, 2, 2]], p=[[[0, 5], [9, 0]]])
    predictions = detect(response, labels=("ant", "bee"), mapping=mapping)
    assert list_columns(predictions, "label") == [("bee",), ("ant",)]
    assert list_columns(predictions, "score")[0][0] == pytest.approx(0.9933, abs=1e-4)


def test_tensors_that_do_not_fit_each_other_are_flagged() -> None:
    mapping = OutputMapping(boxes="b", scores="s", labels="c")
    response = make_tensors(b=[0, 0, 1, 1, 0, 0, 2, 2, 9], s=[0.5], c=["x", "y", "z"])
    predictions = detect(response, mapping=mapping)
    assert list_columns(predictions, "label", "score") == [("x", 0.5), ("y", None)]
    assert predictions.flags == ("tensor_mismatch",)


LEGACY: dict[str, Any] = {
    "detection_boxes": [[10, 20, 30, 60], [0, 0, 5, 5], [1, 1, 2, 2]],
    "detection_scores": [0.9, 0.8, 0.1],
    "detection_classes": ["cat", "dog", "dog"],
    "num_detections": 2,
}


def test_legacy_boxes_have_y_first() -> None:
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


def test_legacy_boxes_within_0_and_1_are_taken_for_shares_and_flagged() -> None:
    response = make_tensors(detection_boxes=[[0, 0.5, 1, 1]], detection_scores=[1])
    predictions = detect(response, size=(10, 10))
    assert list_columns(predictions, *BOX) == [(5, 0, 10, 10, 50)]
    assert predictions.flags == ("box_units_assumed",)
    mapped = detect(response, mapping=OutputMapping(units="pixels"))
    assert list_columns(mapped, *BOX) == [(0.5, 0, 1, 1, 0.5)]


def test_boxes_are_capped() -> None:
    response = make_tensors(b=[0, 0, 1, 1] * 20)
    mapping = OutputMapping(boxes="b")
    predictions = detect(response, mapping=mapping, caps=PredictionCaps(predictions=7))
    assert len(find_items(predictions)) == 7
    assert predictions.flags == ("predictions_capped",)


def test_a_mapping_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValidationError):
        OutputMapping.model_validate({"boxs": "b"})
    with pytest.raises(ValidationError):
        OutputMapping.model_validate({"box_format": "xxyy"})
    assert field_docs(OutputMapping).keys() == OutputMapping.model_fields.keys()
