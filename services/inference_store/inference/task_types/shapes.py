"""Boxes, contours and keypoints: object detection, image segmentation, keypoint detection."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final, TypeAlias

from inference_store.inference.json_text import Json
from inference_store.inference.task_types.response import (
    NO_MAPPING,
    BoxFormat,
    Keypoint,
    Outline,
    Output,
    Point,
    Reading,
    Row,
    Units,
    activate,
    has_any,
    is_numeric,
    numbers,
    read_elements,
    read_labelled,
)

Box: TypeAlias = tuple[float | None, float | None, float | None, float | None]
_NO_BOX: Final[Box] = (None, None, None, None)
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_LEGACY: Final = "detection_boxes"
_NAMES: Final = ("label", "score", "box", _LEGACY, *_CORNERS)


def read_detection(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label, score, box and area."""
    by_name = {output.name: output for output in outputs if output.name is not None}
    mapping = reading.mapping
    if mapping.boxes is not None and mapping.boxes in by_name:
        _add_tensors(by_name[mapping.boxes], by_name, reading)
    elif _LEGACY in by_name:
        data = {name: output.data for name, output in by_name.items()}
        for row in reading.take(_legacy(data, reading)):
            reading.add(by_name[_LEGACY], **row)
    else:
        read_elements(outputs, reading, names=_NAMES, rows=_detected)


def _detected(element: Json, reading: Reading) -> Iterable[Row] | None:
    if not has_any(element, _NAMES):
        return None
    if _LEGACY in element:
        return _legacy(element, reading)
    row = read_labelled(element, reading)
    return [_place(row, read_corners(element, reading), reading.mapping.units, reading)]


def read_corners(element: dict[str, Json], reading: Reading) -> Box:
    """Return the corners of a box in an element, or in its `box`."""
    inner = element.get("box")  # the Hugging Face pipeline nests the corners one level deeper
    corners = inner if isinstance(inner, dict) else element
    xmin, ymin, xmax, ymax = (reading.number(corners.get(name)) for name in _CORNERS)
    return xmin, ymin, xmax, ymax


def _legacy(data: dict[str, Json], reading: Reading) -> Iterator[Row]:
    boxes = _boxes(data[_LEGACY], "yxyx", reading)
    count = numbers(data.get("num_detections"))
    box_count = reading.number(count[0]) if count else None
    if box_count is not None and 0 <= box_count < len(boxes):
        boxes = boxes[: int(box_count)]
    is_guessed = reading.mapping is NO_MAPPING
    units = _guess_units(boxes, reading) if is_guessed else reading.mapping.units
    labels = numbers(data.get("detection_classes"))
    scores = numbers(data.get("detection_scores"))
    for index, box in enumerate(boxes):
        label, score = reading.label(_at(labels, index)), reading.number(_at(scores, index))
        yield _place({"label": label, "score": score}, box, units, reading)


def _add_tensors(output: Output, by_name: dict[str, Output], reading: Reading) -> None:
    mapping = reading.mapping
    boxes = _boxes(output.data, mapping.box_format, reading)
    labels, scores = _labels_and_scores(by_name, len(boxes), reading)
    for index, box in reading.take(enumerate(boxes)):
        labelled = {"label": labels[index], "score": scores[index]}
        reading.add(output, **_place(labelled, box, mapping.units, reading))


def _labels_and_scores(
    by_name: dict[str, Output], count: int, reading: Reading
) -> tuple[list[str | None], list[float | None]]:
    mapping = reading.mapping
    classes = _values(by_name, mapping.class_probabilities)
    labels: list[str | None]
    scores: list[float | None]
    if count and classes and len(classes) % count == 0:
        labels, scores = _best_classes(classes, len(classes) // count, reading)
    else:
        _expect(not classes, reading)
        labels, scores = [None] * count, [None] * count
    if values := _values(by_name, mapping.labels):
        _expect(len(values) == count, reading)
        labels = [reading.label(_at(values, index)) for index in range(count)]
    if values := _values(by_name, mapping.scores):
        _expect(len(values) == count, reading)
        raw = [reading.number(_at(values, index)) for index in range(count)]
        # A softmax is over classes: scores of one number per box have none.
        scores = activate(raw, "sigmoid" if mapping.activation == "sigmoid" else "none")
    return labels, scores


def _best_classes(
    values: list[Json], classes: int, reading: Reading
) -> tuple[list[str | None], list[float | None]]:
    labels: list[str | None] = []
    best: list[float | None] = []
    for first in range(0, len(values), classes):
        row = [reading.number(value) for value in values[first : first + classes]]
        scores = activate(row, reading.mapping.activation)
        ranked = [(score, -index) for index, score in enumerate(scores) if score is not None]
        score, index = max(ranked, default=(None, None))
        best.append(score)
        labels.append(None if index is None else reading.label(-index))
    return labels, best


def _boxes(data: Json, form: BoxFormat, reading: Reading) -> list[Box]:
    values = numbers(data) if data is not None else []
    _expect(len(values) % 4 == 0, reading)
    count = min(len(values) // 4, reading.caps.predictions + 1)
    four = (
        _corners([reading.number(value) for value in values[first : first + 4]], form)
        for first in range(0, count * 4, 4)
    )
    if form in ("xyxy", "yxyx"):
        return list(four)
    number = reading.number  # sizes added to corners may be beyond a float
    return [(number(a), number(b), number(c), number(d)) for a, b, c, d in four]


def _corners(four: Sequence[float | None], form: BoxFormat) -> Box:
    a, b, c, d = four
    if form == "xyxy":
        return a, b, c, d
    if form == "yxyx":
        return b, a, d, c
    if a is None or b is None or c is None or d is None:
        return _NO_BOX
    if form == "xywh":
        return a, b, a + c, b + d
    return a - c / 2, b - d / 2, a + c / 2, b + d / 2


def _place(labelled: Row, box: Box, units: Units, reading: Reading) -> Row:
    """Return the row with its box, in pixels if they are known, and its area."""
    box, pixels = (box, True) if units == "pixels" else _in_pixels(box, reading)
    area = measure_box(box, reading) if pixels else None
    return {**labelled, **dict(zip(_CORNERS, box, strict=True)), "area": area}


def _in_pixels(box: Box, reading: Reading) -> tuple[Box, bool]:
    width, height = reading.width, reading.height
    if not width or not height:
        reading.flag("box_in_shares")
        return box, False
    xmin, ymin, xmax, ymax = (
        None if share is None else reading.number(share * size)
        for share, size in zip(box, (width, height, width, height), strict=True)
    )
    return (xmin, ymin, xmax, ymax), True


def measure_box(box: Box, reading: Reading) -> float | None:
    """Return a box's square pixels; None, flagged, if a corner is missing or the box is
    inverted."""
    xmin, ymin, xmax, ymax = box
    if xmin is None or ymin is None or xmax is None or ymax is None:
        reading.flag("box_incomplete")
        return None
    if xmax < xmin or ymax < ymin:
        reading.flag("box_inverted")
        return None
    return reading.number((xmax - xmin) * (ymax - ymin))


def _guess_units(boxes: list[Box], reading: Reading) -> Units:
    """Return the units of boxes without a mapping: if all are within 0 and 1, they cannot be
    pixels."""
    coordinates = [number for box in boxes for number in box if number is not None]
    if not coordinates or not all(0 <= number <= 1 for number in coordinates):
        return "pixels"
    reading.flag("box_units_assumed")
    return "shares"


def _values(by_name: dict[str, Output], name: str | None) -> list[Json]:
    return numbers(by_name[name].data) if name in by_name and name is not None else []


def _at(values: list[Json], index: int) -> Json:
    return values[index] if index < len(values) else None


def _expect(holds: bool, reading: Reading) -> None:
    if not holds:
        reading.flag("tensor_mismatch")


_CONTOURS: Final = ("label", "score", "contour")


def _segmented(element: Json, reading: Reading) -> list[Row] | None:
    if not has_any(element, _CONTOURS):
        return None
    row = read_labelled(element, reading)
    contours = list(_contours(element.get("contour"), reading))
    if reading.outlines is not None:
        drawn = tuple(tuple(contour) for contour in contours if contour)
        reading.outlines.add(len(reading.rows), Outline(contours=drawn))
    return [row | _extent(contours, reading)]


read_segmentation: Final = partial(read_elements, names=_CONTOURS, rows=_segmented)


def _contours(contour: Json, reading: Reading) -> Iterator[list[Point]]:
    if not isinstance(contour, list):
        return
    if contour and _is_point(contour[0]):  # one contour, not in a list of its own
        contour = [contour]
    for part in contour:
        points = [_point(point, reading) for point in part] if isinstance(part, list) else [None]
        if None in points:
            reading.flag("contour_unreadable")
        yield [point for point in points if point is not None]


def _is_point(value: Json) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and not isinstance(value[0], (dict, list))
    return isinstance(value, dict)


def _point(value: Json, reading: Reading) -> Point | None:
    if isinstance(value, list) and len(value) == 1:  # OpenCV's own [[x, y]]
        value = value[0]
    if isinstance(value, dict):
        x, y = reading.number(value.get("x")), reading.number(value.get("y"))
    elif isinstance(value, list) and len(value) == 2:
        x, y = reading.number(value[0]), reading.number(value[1])
    else:
        return None
    return None if x is None or y is None else (x, y)


def _extent(contours: list[list[Point]], reading: Reading) -> Row:
    points = [point for contour in contours for point in contour]
    if not points:
        reading.flag("contour_missing")
        return {}
    area = reading.number(sum(map(_shoelace, contours)))
    return {**dict(zip(_CORNERS, _find_box(points), strict=True)), "area": area}


def _shoelace(points: list[Point]) -> float:
    closed = [*points, *points[:1]]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairwise(closed))) / 2


# Keypoint detection: `{label, score, keypoints: [{x, y, score, name}, …]}` in pixels.
#
# Keypoints are also read as `[x, y]` and `[x, y, score]`, as COCO's flat `[x1, y1, v1, …]`, and as
# lists by name: `{"x": [], "y": [], "visible": []}`. They may have a box, as in a detection.

_KEYPOINTS: Final = ("label", "score", "keypoints", "box", *_CORNERS)
_SCORES: Final = ("score", "confidence", "visibility", "visible")
_MOST: Final = 1_000
"""The most keypoints of one element that are read."""


def _posed(element: Json, reading: Reading) -> list[Row] | None:
    """Return a row with the given box, or else the one around the keypoints."""
    if not has_any(element, _KEYPOINTS):
        return None
    row = read_labelled(element, reading)
    keypoints = list(_read_keypoints(element.get("keypoints"), reading))
    if not keypoints:
        reading.flag("keypoints_missing")
    if reading.outlines is not None:
        reading.outlines.add(len(reading.rows), Outline(keypoints=tuple(keypoints)))
    box = read_corners(element, reading)
    if box == _NO_BOX:
        box = _find_box([keypoint.point for keypoint in keypoints])
    if box == _NO_BOX:
        return [row]
    return [_place(row, box, "pixels", reading)]


read_keypoints: Final = partial(read_elements, names=_KEYPOINTS, rows=_posed)


def _find_box(points: list[Point]) -> Box:
    if not points:
        return _NO_BOX
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _read_keypoints(value: Json, reading: Reading) -> Iterator[Keypoint]:
    """Yield the keypoints that the model found: COCO writes zeros for the others."""
    for index, item in enumerate(_list_items(value)):
        if index == _MOST:
            reading.flag("keypoints_capped")
            return
        x, y, score, name = _read_parts(item, reading)
        if x is None or y is None:
            reading.flag("keypoint_unreadable")
        elif (x, y, score) != (0, 0, 0):
            yield Keypoint(index, (x, y), score, name)


def _list_items(value: Json) -> list[Json]:
    if isinstance(value, dict):
        xs, ys = value.get("x"), value.get("y")
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            return [None]
        lists = (value[name] for name in _SCORES if isinstance(value.get(name), list))
        scores: list[Json] = next(lists, [])
        return [[x, y, *scores[n : n + 1]] for n, (x, y) in enumerate(zip(xs, ys, strict=True))]
    if not isinstance(value, list):
        return []
    if value and len(value) % 3 == 0 and all(map(is_numeric, value)):
        return [value[first : first + 3] for first in range(0, len(value), 3)]
    return value


def _read_parts(
    item: Json, reading: Reading
) -> tuple[float | None, float | None, float | None, str | None]:
    if isinstance(item, dict):
        name = item.get("name", item.get("label"))
        score = next((item[key] for key in _SCORES if key in item), None)
        name_text = name if isinstance(name, str) else None
        x, y = reading.number(item.get("x")), reading.number(item.get("y"))
        return x, y, _read_score(score, reading), reading.short(name_text)
    if isinstance(item, list) and len(item) in {2, 3}:
        x, y = reading.number(item[0]), reading.number(item[1])
        return x, y, _read_score(item[2], reading) if len(item) == 3 else None, None
    return None, None, None, None


def _read_score(value: Json, reading: Reading) -> float | None:
    """Return a score; a bool says whether the keypoint is visible."""
    return float(value) if isinstance(value, bool) else reading.number(value)
