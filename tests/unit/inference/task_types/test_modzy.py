"""Modzy's result format: an object, a string in a tensor, under `data` or not."""

import json
from typing import Any

import pytest

from .answers import list_columns, make_v2, read

CLASSES = {"result": {"classPredictions": [{"class": "cat", "score": 0.75}]}, "drift": None}
BOX = {"class": "cat", "score": 0.5, "xMin": 1, "xMax": 3, "yMin": 2, "yMax": 5}


@pytest.mark.parametrize("task_type", ["image_classification", "text_classification"])
@pytest.mark.parametrize(
    "response",
    [
        json.dumps(CLASSES).encode(),
        json.dumps({"data": CLASSES}).encode(),
        make_v2([json.dumps(CLASSES)]),
        make_v2([json.dumps({"data": CLASSES})]),
    ],
)
def test_classes_are_labels(task_type: str, response: bytes) -> None:
    assert list_columns(read(task_type, response), "label", "score") == [("cat", 0.75)]


def test_detections_are_boxes() -> None:
    response = make_v2([json.dumps({"result": {"detections": [BOX]}})])
    predictions = read("object_detection", response)
    assert list_columns(predictions, "label", "xmin", "ymax") == [("cat", 1.0, 5.0)]


@pytest.mark.parametrize("result", [None, 5, {}, {"classPredictions": 5}, [1]])
def test_other_results_have_no_predictions(result: Any) -> None:
    predictions = read("image_classification", json.dumps({"result": result}).encode())
    assert predictions.items is None
    assert predictions.problem


def test_a_generated_text_in_that_form_stays_a_text() -> None:
    text = json.dumps(CLASSES)
    assert list_columns(read("text_generation", make_v2([text])), "text") == [(text,)]
