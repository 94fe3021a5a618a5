"""Keypoints, and the outlines that only a drawing wants."""

from inference_store.inference.task_types import read_outlines, task_type_of
from inference_store.inference.task_types.response import Keypoint, Outlines

from .answers import list_columns, make_v2, read

BOX = ("xmin", "ymin", "xmax", "ymax", "area")
NAMED = [{"x": 1, "y": 2, "score": 0.5, "name": "nose"}, {"x": 4, "y": 6, "visible": True}]


def read_keypoint_outlines(response: bytes, task_type: str = "keypoint_detection") -> Outlines:
    return read_outlines(response, task_type=task_type_of(task_type))


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


def test_a_box_that_is_given_stays() -> None:
    box = {"xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}
    predictions = read("keypoints", make_v2([{"label": "x", "box": box, "keypoints": NAMED}]))
    assert list_columns(predictions, *BOX) == [(0, 0, 10, 10, 100)]


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


def test_contours_are_kept_whole() -> None:
    inner, outer = [[1, 1], [2, 1], [2, 2]], [[0, 0], [9, 0], [9, 9]]
    data = [{"label": "a", "contour": []}, {"label": "b", "contour": [outer, inner]}]
    kept_outlines = read_keypoint_outlines(make_v2(data), "image_segmentation").found
    assert list(kept_outlines) == [1]
    expected = tuple(tuple((x, y) for x, y in contour) for contour in (outer, inner))
    assert kept_outlines[1].contours == expected


def test_points_are_bounded() -> None:
    bounded = Outlines(most=5)
    bounded.add_contours(0, [[(0, 0), (1, 1), (2, 2)]])
    bounded.add_contours(1, [[(0, 0), (1, 1), (2, 2)]])
    bounded.add_keypoints(2, [Keypoint(0, (1, 1))])
    assert (list(bounded.found), bounded.points, bounded.capped) == ([0, 2], 4, True)


def test_an_unreadable_response_has_no_outlines() -> None:
    for response in (b"", b"{", b"5", b'{"error": "x"}', b"[[[[[["):
        assert read_keypoint_outlines(response).found == {}
        assert read_keypoint_outlines(make_v2([{"label": "x"}]), "object_detection").found == {}
