"""Predictions as annotations of a picture: in pixels, and clipped to it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inference_store_client.values.drawings import Drawing, Keypoint, Shape
from inference_store_client.values.inference import InferenceFields
from inference_store_client.values.predictions import Prediction

from .geometry import Box, Point, Size, clip_box, clip_polygon, find_extent, measure_polygon

_IN_SHARES: Final = "box_in_shares"
UNLABELLED: Final = "unlabelled"
"""The class of predictions without a label."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A prediction inside a picture. `keypoints` has only those that are inside."""

    label: str
    score: float | None
    ordinal: int
    box: Box
    area: float
    polygons: Sequence[Sequence[Point]] = ()
    keypoints: Sequence[tuple[Keypoint, Point]] = ()
    is_clipped: bool = False


def list_annotations(
    inference: InferenceFields, size: Size, drawing: Drawing | None, dropped: Counter[str]
) -> list[Annotation]:
    """Return the predictions that have a shape in the picture; count the others in `dropped`."""
    shapes = _group_shapes(drawing)
    is_in_shares = _IN_SHARES in inference.flags
    annotations = []
    for prediction in inference.predictions:
        drawn = _Drawn(prediction, size, shapes.get(prediction.ordinal, ()), is_in_shares)
        annotation = drawn.annotate()
        if annotation is not None:
            annotations.append(annotation)
        else:
            dropped["outside" if drawn.has_shape else "no_shape"] += 1
    return annotations


def _group_shapes(drawing: Drawing | None) -> Mapping[int, Sequence[Shape]]:
    shapes: dict[int, list[Shape]] = defaultdict(list)
    for shape in () if drawing is None else drawing.shapes:
        shapes[shape.ordinal].append(shape)
    return shapes


class _Drawn:
    """A prediction with its shapes, not yet clipped."""

    def __init__(
        self,
        prediction: Prediction,
        size: Size,
        shapes: Sequence[Shape],
        is_in_shares: bool,
    ) -> None:
        self._prediction, self._size = prediction, size
        self._polygons = [*_list_polygons(prediction, size, shapes)]
        self._keypoints = [*_list_keypoints(shapes)]
        self._box = _find_box(prediction, size, is_in_shares)

    @property
    def has_shape(self) -> bool:
        return bool(self._box or self._polygons or self._keypoints)

    def annotate(self) -> Annotation | None:
        """Return what of it is in the picture; None: nothing."""
        polygons = [part for part in map(self._clip, self._polygons) if part]
        keypoints = [pair for pair in self._keypoints if self._is_inside(pair[1])]
        points = [point for part in polygons for point in part]
        extent = find_extent(points) if points else self._box
        if extent is None and keypoints:
            extent = find_extent([point for _, point in keypoints])
        box = None if extent is None else clip_box(extent, self._size)
        if box is None:
            return None
        return Annotation(
            self._prediction.label or UNLABELLED,
            self._prediction.score,
            self._prediction.ordinal,
            box,
            sum(map(measure_polygon, polygons)) or (box[2] - box[0]) * (box[3] - box[1]),
            polygons,
            keypoints,
            is_clipped=self._is_outside_in_part(),
        )

    def _clip(self, points: Sequence[Point]) -> list[Point]:
        if all(map(self._is_inside, points)):
            return [*points] if measure_polygon(points) > 0 else []
        return clip_polygon(points, self._size)

    def _is_inside(self, point: Point) -> bool:
        return 0 <= point[0] <= self._size[0] and 0 <= point[1] <= self._size[1]

    def _is_outside_in_part(self) -> bool:
        corners = [] if self._box is None else [self._box[:2], self._box[2:]]
        drawn = [point for part in self._polygons for point in part]
        drawn += [point for _, point in self._keypoints]
        return not all(map(self._is_inside, [*corners, *drawn]))


def _find_box(prediction: Prediction, size: Size, is_in_shares: bool) -> Box | None:
    if prediction.box is None or not is_in_shares:
        return prediction.box
    left, top, right, bottom = prediction.box
    return left * size[0], top * size[1], right * size[0], bottom * size[1]


def _list_polygons(
    prediction: Prediction, size: Size, shapes: Sequence[Shape]
) -> Iterator[list[Point]]:
    for shape in shapes:
        if shape.kind == "polygon":
            yield [(x, y) for x, y in shape.points]
    match prediction:
        case Prediction(
            cx=float() as x, cy=float() as y, w=float() as w, h=float() as h, angle=float() as angle
        ):
            yield _turn((x, y, w, h), angle, size)


def _list_keypoints(shapes: Sequence[Shape]) -> Iterator[tuple[Keypoint, Point]]:
    for shape in shapes:
        points = [(x, y) for x, y in shape.points]
        yield from zip(shape.keypoints or (), points, strict=False)


def _turn(box: Box, angle: float, size: Size) -> list[Point]:
    """Return the corners of an oriented box, which is turned among pixels and not among shares."""
    x, y = box[0] * size[0], box[1] * size[1]
    half_w, half_h = box[2] * size[0] / 2, box[3] * size[1] / 2
    cosine, sine = math.cos(angle), math.sin(angle)
    corners = [(-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h)]
    return [(x + a * cosine - b * sine, y + a * sine + b * cosine) for a, b in corners]
