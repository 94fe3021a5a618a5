"""Where a point lies: exactly for areas, in floating point for distances."""

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
"""Coordinates are rounded to so many for a distance: doubles underflow beyond them."""


def holds(located: Located, point: Point) -> bool:
    """Whether the relation holds of a point."""
    if point in located.points:
        return True
    wanted = {"inside"} if located.relation == "within" else {"inside", "edge"}
    return any(position(area, point) in wanted for area in located.areas)


def position(area: Area, point: Point) -> Literal["inside", "edge", "outside"]:
    """Inside: a ray to the east crosses an odd number of the edges of all rings together.

    By the signs of cross products in exact decimals: nothing is divided, nothing rounded.
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
    """How many edges an area has."""
    return sum(1 for _ in _edges(area))


def within(points: Sequence[Point], areas: Sequence[Area], others: Sequence[Point]) -> bool:
    """All points lie in the areas or are one of the others, and not all are on an edge alone."""
    inside = Located("within", tuple(areas), tuple(others))
    reached = Located("intersects", tuple(areas), tuple(others))
    return all(holds(reached, each) for each in points) and any(holds(inside, p) for p in points)


def meet(
    areas: Sequence[Area],
    points: Sequence[Point],
    other_areas: Sequence[Area],
    other_points: Sequence[Point],
) -> bool:
    """Whether two geometries have a point in common: of an area the edge belongs to it."""
    one = Located("intersects", tuple(areas), tuple(points))
    other = Located("intersects", tuple(other_areas), tuple(other_points))
    return (
        any(holds(other, point) for point in points)
        or any(holds(one, point) for point in other_points)
        or any(_areas_meet(a, b) for a in areas for b in other_areas)
    )


def _areas_meet(one: Area, other: Area) -> bool:
    """Edges meet, or a whole ring of one lies inside the other: then any corner of it does."""
    with localcontext(EXACT):
        if any(_cross(*a, *b) for a in _edges(one) for b in _edges(other)):
            return True
    corners = [
        (ring[0], b) for a, b in ((one, other), (other, one)) for ring in (a.outer, *a.holes)
    ]
    return any(position(area, corner) == "inside" for corner, area in corners)


def _cross(start: Point, end: Point, other_start: Point, other_end: Point) -> bool:
    """Two edges have a point in common."""
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
    """Positive where the point lies left of the edge, zero on its line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])


def _between(start: Point, end: Point, point: Point) -> bool:
    return all(min(a, b) <= c <= max(a, b) for a, b, c in zip(start, end, point, strict=True))


def metres(start: Point, end: Point) -> float:
    """Along the sphere (haversine), step by step as the SQL has it, so that the doubles agree."""
    (east, north), (other_east, other_north) = (
        [math.radians(float(rounded(degrees))) for degrees in point] for point in (start, end)
    )
    up, across = math.sin((other_north - north) / 2), math.sin((other_east - east) / 2)
    share = up * up + math.cos(north) * math.cos(other_north) * (across * across)
    return 2 * EARTH_RADIUS_METRES * math.asin(min(1.0, math.sqrt(share)))


def rounded(degrees: Decimal) -> Decimal:
    """To DECIMALS_OF_DEGREES at most."""
    if scale_of(degrees) <= DECIMALS_OF_DEGREES:
        return degrees
    wide = EXACT.copy()
    wide.clear_traps()
    return degrees.quantize(Decimal(1).scaleb(-DECIMALS_OF_DEGREES), ROUND_HALF_UP, wide)
