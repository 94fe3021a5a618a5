"""Predictions as annotations of a picture: in pixels, and clipped to it."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from typing import Any, Final, TypeAlias

from inference_store_client.errors import SettingsError, import_extra
from inference_store_client.times import format_instant
from inference_store_client.values.answers import Drawing, Keypoint, Shape
from inference_store_client.values.inference import InferenceFields, Prediction

# Boxes and polygons in pixels, clipped to a picture.

Point: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]
"""xmin, ymin, xmax, ymax."""
Size: TypeAlias = tuple[int, int]
"""Width and height."""


def clip_box(box: Box, size: Size) -> Box | None:
    """Return the part of a box that is in the picture; None: nothing of it is."""
    left, top, right, bottom = box
    width, height = float(size[0]), float(size[1])
    left, right = max(left, 0.0), min(right, width)
    top, bottom = max(top, 0.0), min(bottom, height)
    return (left, top, right, bottom) if left < right and top < bottom else None


def clip_polygon(points: Sequence[Point], size: Size) -> list[Point]:
    """Return the part of a polygon that is in the picture; empty: it has no area there.

    Sutherland and Hodgman: the polygon is cut at each edge of the picture in turn.
    """
    width, height = size
    for axis, sign, limit in ((0, 1.0, 0), (0, -1.0, width), (1, 1.0, 0), (1, -1.0, height)):
        edges = zip(points, [*points[1:], *points[:1]], strict=True)
        points = [at for edge in edges for at in _cut_edge(*edge, axis, sign, float(limit))]
    return [*points] if measure_polygon(points) > 0 else []


def measure_polygon(points: Sequence[Point]) -> float:
    """Return the area that a polygon encloses, in square pixels."""
    if len(points) < 3:
        return 0.0
    closed = [*points, points[0]]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairwise(closed))) / 2


def find_extent(points: Sequence[Point]) -> Box:
    """Return the box around points."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)


def _cut_edge(begin: Point, end: Point, axis: int, sign: float, limit: float) -> Iterator[Point]:
    """Yield where an edge crosses into or out of the picture, and its end if that is inside."""
    before, after = sign * (begin[axis] - limit), sign * (end[axis] - limit)
    if before * after < 0:
        share = before / (before - after)
        (x1, y1), (x2, y2) = begin, end
        yield x1 + share * (x2 - x1), y1 + share * (y2 - y1)
    if after >= 0:
        yield end


OUTLINED: Final = frozenset(
    {
        *("image_segmentation", "instance_segmentation", "keypoint_detection"),
        *("pose_estimation", "human_pose_estimation", "keypoints"),
    }
)
"""Task types whose contours or keypoints are in the response alone."""
DETECTING: Final = OUTLINED | {"object_detection", "oriented_object_detection"}
"""Task types whose predictions have a place: one without is no class of the picture."""
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


@dataclass(slots=True)
class Found:
    """What predictions say of a datum: shapes in it, and classes of the whole, the best first."""

    annotations: list[Annotation] = field(default_factory=list)
    classes: list[Prediction] = field(default_factory=list)


def read_predictions(
    inference: InferenceFields, size: Size, drawing: Drawing | None, dropped: Counter[str]
) -> Found:
    """Return what the predictions say; count those that say nothing in `dropped`."""
    found, shapes = Found(), _group_shapes(drawing)
    is_in_shares = _IN_SHARES in inference.flags
    is_detecting = name_task_type(inference) in DETECTING
    for prediction in inference.predictions:
        drawn = _Drawn(prediction, size, shapes.get(prediction.ordinal, ()), is_in_shares)
        annotation = drawn.annotate()
        if annotation is not None:
            found.annotations.append(annotation)
        elif drawn.has_shape:
            dropped["outside"] += 1
        elif is_detecting or prediction.label is None or prediction.start is not None:
            dropped["no_shape"] += 1
        else:
            found.classes.append(prediction)
    found.classes.sort(key=lambda prediction: prediction.rank)
    return found


def name_task_type(inference: InferenceFields) -> str | None:
    """Return the task type in small letters with underscores; None: the event named none."""
    task_type = inference.task_type
    return task_type and re.sub(r"[^a-z0-9]+", "_", task_type.lower()).strip("_")


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


# What a dataset says of an inference, as JSON that a reader cannot round.


def write_record(record: Mapping[str, Any]) -> str:
    """Return a record as a line of JSON."""
    return json.dumps(record, allow_nan=False) + "\n"


def format_value(value: Any) -> Any:
    """Return a value of metadata: whole numbers exact, a decimal that no double holds as text."""
    match value:
        case Decimal():
            double = float(value)
            return double if Decimal(repr(double)) == value else str(value)
        case datetime():
            return format_instant(value)
        case str() | None | bool() | int():
            return value
        case Mapping():
            return {str(name): format_value(member) for name, member in value.items()}
        case Sequence():
            return [*map(format_value, value)]
    raise TypeError(f"metadata has no {type(value).__name__}")


# Pictures as they were stored: what their first bytes and their header say.

_SIGNATURES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "webp"),
    (re.compile(rb"BM....\0\0\0\0", re.DOTALL), "bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "tiff"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "avif"),
)
"""What a picture begins with, and the suffix of its file."""
SUFFIXES: Final = frozenset(suffix for _, suffix in _SIGNATURES)
"""Every suffix that a picture of a dataset may have."""
_MOST_PIXELS: Final = 2**31


TEXT: Final = "txt"
NO_SIZE: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class Picture:
    """The bytes of a picture, unchanged, and its size in pixels as it is stored; or of a text."""

    content: bytes = field(repr=False)
    suffix: str
    size: Size


class NoPicture(Exception):
    """The bytes are not a picture that a dataset can hold; the text is the reason's name."""


def require_headers() -> None:
    """Raise SettingsError if the library that reads headers is not installed."""
    _import_imagesize()


def read_picture(content: bytes) -> Picture:
    """Return a picture. Raises NoPicture with `not_a_picture` or `unreadable`."""
    suffix = _find_suffix(content)
    if suffix is None:
        raise NoPicture("not_a_picture")
    try:
        # Boxes are on the pixels that the model got: not turned as the camera was held.
        width, height = _import_imagesize().get(BytesIO(content), exif_rotation=False)
    except SettingsError:
        raise
    except Exception:  # a library reads untrusted bytes: whatever it raises, the size is unknown
        raise NoPicture("unreadable") from None
    if not (0 < width < _MOST_PIXELS and 0 < height < _MOST_PIXELS):
        raise NoPicture("unreadable")
    return Picture(content, suffix, (int(width), int(height)))


def read_text(content: bytes) -> Picture:
    """Return a text in UTF-8, such as JSON. Raises NoPicture."""
    try:
        content.decode()
    except UnicodeDecodeError:
        raise NoPicture("not_a_picture") from None
    return Picture(content, TEXT, NO_SIZE)


def _find_suffix(content: bytes) -> str | None:
    return next((suffix for begin, suffix in _SIGNATURES if begin.match(content)), None)


def _import_imagesize() -> Any:
    return import_extra("imagesize", "datasets")
