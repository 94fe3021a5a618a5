"""Image segmentation: `{label, score, contour: [[{x, y}, …], …]}` in pixels."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from inference_store.inference.json_text import Json

from .outlines import Point
from .response_reading import Reading, Row
from .unwrap import Output, elements

_NAMES: Final = ("label", "score", "contour")


def read_segmentation(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label, score, and the box and area of all contours."""
    for output in outputs:
        for element in elements(output.data, _NAMES):
            if reading.full():
                return
            if not isinstance(element, dict) or element.keys().isdisjoint(_NAMES):
                reading.unreadable += 1
                continue
            row: Row = {
                "output": output.position,
                "output_name": output.name,
                "label": reading.label(element.get("label")),
                "score": reading.number(element.get("score")),
            }
            contours = list(_contours(element.get("contour"), reading))
            row.update(_extent(contours, reading))
            if reading.outlines is not None:
                reading.outlines.add_contours(len(reading.rows), contours)
            reading.rows.append(row)


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
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return {
        "xmin": min(xs),
        "ymin": min(ys),
        "xmax": max(xs),
        "ymax": max(ys),
        "area": reading.number(sum(map(_shoelace, contours))),
    }


def _shoelace(points: list[Point]) -> float:
    """Return the area that a closed line of points encloses."""
    closed = [*points, *points[:1]]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in pairwise(closed))) / 2
