"""Boxes and polygons in pixels, clipped to a picture."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

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
        points = _cut(points, _measure_distance(axis, sign, float(limit)))
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


def _measure_distance(axis: int, sign: float, limit: float) -> Callable[[Point], float]:
    """Return how far a point is inside of an edge; negative: outside."""
    return lambda point: sign * (point[axis] - limit)


def _cut(points: Sequence[Point], measure: Callable[[Point], float]) -> list[Point]:
    return [point for pair in _list_edges(points) for point in _cut_edge(*pair, measure)]


def _list_edges(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    return zip(points, [*points[1:], *points[:1]], strict=True)


def _cut_edge(begin: Point, end: Point, measure: Callable[[Point], float]) -> Iterator[Point]:
    """Yield where an edge crosses into or out of the picture, and its end if that is inside."""
    before, after = measure(begin), measure(end)
    if before * after < 0:
        share = before / (before - after)
        (x1, y1), (x2, y2) = begin, end
        yield x1 + share * (x2 - x1), y1 + share * (y2 - y1)
    if after >= 0:
        yield end
