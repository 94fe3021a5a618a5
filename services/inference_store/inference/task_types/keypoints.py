"""Keypoint detection: `{label, score, keypoints: [{x, y, score, name}, …]}` in pixels.

Keypoints are also read as `[x, y]` and `[x, y, score]`, as COCO's flat `[x1, y1, v1, …]`, and as
lists by name: `{"x": [], "y": [], "visible": []}`. They may have a box, as in a detection.
"""

from collections.abc import Iterator
from typing import Final

from inference_store.inference.json_text import Json

from .detection import Box, measure_box, read_corners
from .outlines import Keypoint
from .response_reading import Reading, Row, is_numeric
from .unwrap import Output, elements

_NAMES: Final = ("label", "score", "keypoints", "box", "xmin", "ymin", "xmax", "ymax")
_SCORES: Final = ("score", "confidence", "visibility", "visible")
_MOST: Final = 1_000
"""The most keypoints of one element that are read."""


def read_keypoints(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label, score, and the given box, or else the one around the keypoints."""
    for output in outputs:
        for element in elements(output.data, _NAMES):
            if reading.full():
                return
            if not isinstance(element, dict) or element.keys().isdisjoint(_NAMES):
                reading.unreadable += 1
                continue
            keypoints = list(_read_keypoints(element.get("keypoints"), reading))
            if not keypoints:
                reading.flag("keypoints_missing")
            if reading.outlines is not None:
                reading.outlines.add_keypoints(len(reading.rows), keypoints)
            reading.rows.append(_row(output, element, keypoints, reading))


def _row(
    output: Output, element: dict[str, Json], keypoints: list[Keypoint], reading: Reading
) -> Row:
    box = read_corners(element, reading)
    if box == (None, None, None, None):
        box = _find_box(keypoints)
    names = ("xmin", "ymin", "xmax", "ymax")
    return {
        "output": output.position,
        "output_name": output.name,
        "label": reading.label(element.get("label")),
        "score": reading.number(element.get("score")),
        **dict(zip(names, box, strict=True)),
        "area": None if box == (None, None, None, None) else measure_box(box, reading),
    }


def _find_box(keypoints: list[Keypoint]) -> Box:
    if not keypoints:
        return None, None, None, None
    xs = [keypoint.point[0] for keypoint in keypoints]
    ys = [keypoint.point[1] for keypoint in keypoints]
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
    """Return one item for each keypoint, however they are written."""
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
