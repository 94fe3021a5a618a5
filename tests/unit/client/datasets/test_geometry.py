"""Boxes and polygons are cut at the edges of a picture, exactly."""

from itertools import product
from random import Random

import pytest

from inference_store_client.datasets.geometry import (
    Box,
    clip_box,
    clip_polygon,
    find_extent,
    measure_polygon,
)

_SIZE = (100, 50)
_SQUARE = [(10.0, 10.0), (30.0, 10.0), (30.0, 30.0), (10.0, 30.0)]


def test_a_box_is_clipped() -> None:
    cases: list[tuple[Box, Box | None]] = [
        ((10, 10, 20, 20), (10, 10, 20, 20)),
        ((-5, -5, 200, 200), (0, 0, 100, 50)),
        ((90, 40, 110, 60), (90, 40, 100, 50)),
        ((100, 0, 120, 10), None),
        ((-10, 0, 0, 10), None),
        ((20, 20, 10, 30), None),
        ((20, 20, 20, 30), None),
    ]
    for box, expected in cases:
        assert clip_box(box, _SIZE) == expected, box


def test_a_polygon_inside_stays() -> None:
    assert sorted(clip_polygon(_SQUARE, _SIZE)) == sorted(_SQUARE)
    assert measure_polygon(_SQUARE) == 400
    assert find_extent(_SQUARE) == (10, 10, 30, 30)


def test_a_triangle_over_an_edge_keeps_what_is_inside() -> None:
    triangle = [(90.0, 10.0), (110.0, 10.0), (90.0, 30.0)]
    clipped = clip_polygon(triangle, _SIZE)
    assert measure_polygon(clipped) == pytest.approx(150)
    assert find_extent(clipped) == (90, 10, 100, 30)


def test_what_has_no_area_in_the_picture_is_nothing() -> None:
    cases: list[list[tuple[float, float]]] = [
        [],
        [(1.0, 1.0)],
        [(1.0, 1.0), (2.0, 2.0)],
        [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)],
        [(x + 200, y) for x, y in _SQUARE],
        [(x, y - 30) for x, y in _SQUARE],
    ]
    for points in cases:
        assert clip_polygon(points, _SIZE) == [], points


def test_the_area_is_that_of_the_pixels_inside() -> None:
    """Triangles at random, compared with a grid of points."""
    chance = Random(5)
    for _ in range(10):
        triangle = [(chance.uniform(-60, 160), chance.uniform(-60, 110)) for _ in range(3)]
        grid = product(range(1, 100, 2), range(1, 50, 2))
        inside = 4 * sum(is_inside(point, triangle) for point in grid)
        clipped = clip_polygon(triangle, _SIZE)
        assert measure_polygon(clipped) == pytest.approx(inside, abs=160)
        assert all(0 <= x <= 100 and 0 <= y <= 50 for x, y in clipped)


def is_inside(point: tuple[float, float], triangle: list[tuple[float, float]]) -> bool:
    x, y = point
    sides = [
        (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1)
        for (x1, y1), (x2, y2) in zip(triangle, [*triangle[1:], triangle[0]], strict=True)
    ]
    return all(side >= 0 for side in sides) or all(side <= 0 for side in sides)
