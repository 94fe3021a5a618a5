"""Draws predictions: boxes of the index; contours and keypoints of the stored response."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from inference_store.inference.task_types import Outline

Predicted: TypeAlias = Mapping[str, Any]
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_ROTATED: Final = ("cx", "cy", "w", "h", "angle")
_IN_SHARES: Final = "box_in_shares"


def format_drawing(
    row: Any, predicted: Sequence[Predicted], outlines: Mapping[int, Outline]
) -> Any:
    """Format the shapes of an inference; `outlines`: by the ordinal of the prediction."""
    width, height = row["width"], row["height"]
    size = (width, height) if width and height else None
    shapes: list[dict[str, Any]] = []
    without_shape = 0
    for prediction in sorted(predicted, key=lambda item: int(item["ordinal"])):
        drawn = list(_draw(prediction, outlines.get(prediction["ordinal"], Outline()), size))
        shapes += drawn
        without_shape += not drawn
    return {
        "uid": row["uid"],
        "width": width,
        "height": height,
        "units": "shares" if _IN_SHARES in row["flags"] else "pixels",
        "shapes": shapes,
        "without_shape": without_shape,
    }


def _draw(
    prediction: Predicted, outline: Outline, size: tuple[int, int] | None
) -> Iterator[dict[str, Any]]:
    """Yield the shapes of a prediction: what says most of it."""
    if outline.keypoints:
        keypoints = [
            {"index": k.place, "name": k.name, "score": k.score} for k in outline.keypoints
        ]
        yield _format_shape(
            "keypoints",
            prediction,
            [keypoint.point for keypoint in outline.keypoints],
            keypoints=keypoints,
        )
    elif outline.contours:
        for contour in outline.contours:
            yield _format_shape("polygon", prediction, contour)
    elif all(prediction[name] is not None for name in _ROTATED):
        rotated = {name: prediction[name] for name in _ROTATED}
        points = [] if size is None else _rotate(rotated, *size)
        yield _format_shape("oriented_box", prediction, points, oriented=rotated)
    elif (box := _get_box(prediction)) is not None:
        yield _format_shape("box", prediction, _list_corners(box))


def _format_shape(
    kind: str, prediction: Predicted, points: Any, *, keypoints: Any = None, oriented: Any = None
) -> dict[str, Any]:
    return {
        "kind": kind,
        **{name: prediction[name] for name in ("ordinal", "rank", "label", "score")},
        "points": points,
        "keypoints": keypoints,
        "box": _get_box(prediction),
        "oriented": oriented,
    }


def _get_box(prediction: Predicted) -> dict[str, float] | None:
    box = {name: prediction[name] for name in _CORNERS}
    return None if None in box.values() else box


def _list_corners(box: dict[str, float]) -> list[tuple[float, float]]:
    left, top, right, bottom = (box[name] for name in _CORNERS)
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _rotate(box: dict[str, float], width: int, height: int) -> list[tuple[float, float]]:
    """Return the corners in pixels: the box is turned there, not among shares."""
    x, y = box["cx"] * width, box["cy"] * height
    half_w, half_h = box["w"] * width / 2, box["h"] * height / 2
    cosine, sine = math.cos(box["angle"]), math.sin(box["angle"])
    corners = [(-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h)]
    return [(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in corners]
