"""Relations of points and areas: exact for areas, in floating point for distances."""

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import pairwise
from typing import Final, Literal

from .arithmetic import EXACT, scale_of
from .facts import Point
from .typed import Area, Located

EARTH_RADIUS_METRES: Final = 6_371_008.8
DECIMALS_OF_DEGREES: Final = 30
"""Decimals to which coordinates are rounded for a distance: doubles underflow beyond them."""


def holds(located: Located, point: Point) -> bool:
    """Check whether the relation holds for a point."""
    if point in located.points:
        return True
    positions = {"inside"} if located.relation == "within" else {"inside", "edge"}
    return any(position(area, point) in positions for area in located.areas)


def position(area: Area, point: Point) -> Literal["inside", "edge", "outside"]:
    """Return the position of a point. Inside: a ray to the east crosses an odd number of edges.

    The edges are those of all rings. The test uses signs of cross products in exact decimals,
    without division or rounding.
    """
    inside = False
    with localcontext(EXACT):
        for start, end in _edges(area):
            turn = _turn(start, end, point)
            if turn == 0 and _between(start, end, point):
                return "edge"
            upward = end[1] > start[1]
            if (start[1] > point[1]) != (end[1] > point[1]) and (turn > 0) == upward:
                inside = not inside
    return "inside" if inside else "outside"


def edges_of(area: Area) -> int:
    """Return the number of edges of an area."""
    return sum(1 for _ in _edges(area))


def within(points: Sequence[Point], areas: Sequence[Area], others: Sequence[Point]) -> bool:
    """Check that all points lie in the areas or equal another point, and not all are on an edge."""
    inside = Located("within", tuple(areas), tuple(others))
    reached = Located("intersects", tuple(areas), tuple(others))
    return all(holds(reached, point) for point in points) and any(holds(inside, p) for p in points)


def meet(
    areas: Sequence[Area],
    points: Sequence[Point],
    other_areas: Sequence[Area],
    other_points: Sequence[Point],
) -> bool:
    """Check whether two geometries have a point in common; an edge belongs to its area."""
    left = Located("intersects", tuple(areas), tuple(points))
    right = Located("intersects", tuple(other_areas), tuple(other_points))
    return (
        any(holds(right, point) for point in points)
        or any(holds(left, point) for point in other_points)
        or any(_areas_meet(a, b) for a in areas for b in other_areas)
    )


def _areas_meet(left: Area, right: Area) -> bool:
    """Check whether edges meet, or a whole ring of one area, so any corner, is inside the other."""
    with localcontext(EXACT):
        if any(_cross(*a, *b) for a in _edges(left) for b in _edges(right)):
            return True
    corners = [
        (ring[0], b) for a, b in ((left, right), (right, left)) for ring in (a.outer, *a.holes)
    ]
    return any(position(area, corner) == "inside" for corner, area in corners)


def _cross(start: Point, end: Point, other_start: Point, other_end: Point) -> bool:
    """Check whether two edges have a point in common."""
    turns = [_side(start, end, p) for p in (other_start, other_end)]
    others = [_side(other_start, other_end, p) for p in (start, end)]
    if turns[0] != turns[1] and others[0] != others[1]:
        return True
    return any(
        turn == 0 and _between(start, end, p)
        for turn, p in zip(turns, (other_start, other_end), strict=True)
    ) or any(
        turn == 0 and _between(other_start, other_end, p)
        for turn, p in zip(others, (start, end), strict=True)
    )


def _side(start: Point, end: Point, point: Point) -> int:
    turn = _turn(start, end, point)
    return (turn > 0) - (turn < 0)


def _edges(area: Area) -> Iterator[tuple[Point, Point]]:
    for ring in (area.outer, *area.holes):
        yield from pairwise(ring)


def _turn(start: Point, end: Point, point: Point) -> Decimal:
    """Return a cross product: positive if the point is left of the edge, zero on its line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def _between(start: Point, end: Point, point: Point) -> bool:
    return all(min(a, b) <= c <= max(a, b) for a, b, c in zip(start, end, point, strict=True))


def metres(start: Point, end: Point) -> float:
    """Return the distance on the sphere (haversine), in the SQL's steps, so that doubles agree."""
    (east, north), (other_east, other_north) = (
        [math.radians(float(rounded(degrees))) for degrees in point] for point in (start, end)
    )
    up, across = math.sin((other_north - north) / 2), math.sin((other_east - east) / 2)
    share = up * up + math.cos(north) * math.cos(other_north) * (across * across)
    return 2 * EARTH_RADIUS_METRES * math.asin(min(1.0, math.sqrt(share)))


def rounded(degrees: Decimal) -> Decimal:
    """Round to DECIMALS_OF_DEGREES."""
    if scale_of(degrees) <= DECIMALS_OF_DEGREES:
        return degrees
    wide = EXACT.copy()
    wide.clear_traps()
    return degrees.quantize(Decimal(1).scaleb(-DECIMALS_OF_DEGREES), ROUND_HALF_UP, wide)
