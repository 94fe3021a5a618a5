"""Oriented boxes and contours."""

import math
from typing import Any

import pytest

from inference_store.inference.task_types import Predictions

from .answers import find_items, list_columns, make_v2, read

BOX = ("xmin", "ymin", "xmax", "ymax", "area")


def segment(contour: Any) -> Predictions:
    return read("image_segmentation", make_v2([{"label": "x", "score": 1, "contour": contour}]))


def test_the_published_oriented_example() -> None:
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


def test_an_oriented_box_with_a_number_missing_is_kept_and_flagged() -> None:
    predictions = read(
        "oriented_object_detection", make_v2([{"label": "x", "cx": 0.5}, 7]), size=(9, 9)
    )
    assert list_columns(predictions, "label", "cx", "area") == [("x", 0.5, None)]
    assert predictions.flags == ("box_incomplete", "elements_unreadable")


def test_the_published_segmentation_example() -> None:
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


def test_reads_a_single_contour_without_its_list() -> None:
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
