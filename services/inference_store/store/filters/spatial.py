"""The spatial functions: where the inference's location lies."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, cast

from inference_store.store.cql2 import OPERATIONS
from inference_store.store.cql2.tree import Geometry, Operation

from . import operands
from .checking import Checking
from .facts import Point
from .refusals import meaningless, not_kept
from .typed import And, Area, Located, Not, Ring, Truth

SPATIAL_FUNCTIONS: Final = frozenset({"s_intersects", "s_within", "s_disjoint"})
_ALL_LITERALS: Final = "basic-spatial-functions-plus"
_BEYOND: Final = Decimal(181)
"""A degree past the antimeridian, where nothing lies: no edge of a box that crosses it."""


def truth_of(node: Operation, checking: Checking) -> Truth:
    """Where the location lies to a geometry. Raises InvalidFilter, NotKept."""
    op = node.op.lower()
    operands.refuse_inside(node, checking)
    geometry, turned = _geometry(node, checking)
    areas, points = tuple(_areas(geometry, checking)), tuple(_points(geometry, checking))
    if op == "s_within":
        return _is_it(areas, points) if turned else Located("within", areas, points)
    located = Located("intersects", areas, points)
    return Not(located) if op == "s_disjoint" else located


def _is_it(areas: tuple[Area, ...], points: tuple[Point, ...]) -> Truth:
    """Whether a geometry lies in the location: it is that point; an area never is."""
    if areas:
        some = Located("intersects", areas)
        return And((some, Not(some)))
    return And(tuple(Located("intersects", points=(point,)) for point in points))


def _geometry(node: Operation, checking: Checking) -> tuple[Geometry, bool]:
    """The geometry, and whether it comes before the location."""
    one, other = node.args
    if isinstance(other, Geometry) and operands.is_location(one, checking):
        return other, False
    if isinstance(one, Geometry) and operands.is_location(other, checking):
        return one, True
    if isinstance(one, Geometry) and isinstance(other, Geometry):
        conformance = OPERATIONS[node.op.lower()].conformance
        message = f"{node.op.upper()} of two geometries that are written out is not kept"
        raise not_kept(node, checking.source, message, conformance)
    message = f"{node.op.upper()} takes the location and a geometry that is written out"
    raise meaningless(node, checking.source, message, ("location",))


def _parts(geometry: Geometry) -> Iterator[Geometry]:
    """Single points, boxes and polygons, and whatever is not kept."""
    many: dict[str, Any] = {"MultiPoint": "Point", "MultiPolygon": "Polygon"}
    for each in geometry.geometries:
        yield from _parts(each)
    if geometry.shape in many:
        for coordinates in cast(Any, geometry.coordinates):
            yield Geometry(many[geometry.shape], coordinates, at=geometry.at)
    elif geometry.shape != "GeometryCollection":
        yield geometry


def _points(geometry: Geometry, checking: Checking) -> Iterator[Point]:
    for part in _parts(geometry):
        if part.shape == "Point":
            yield _point(part.coordinates, checking)


def _areas(geometry: Geometry, checking: Checking) -> Iterator[Area]:
    for part in _parts(geometry):
        if part.shape == "Polygon":
            rings = [_ring(each, checking) for each in cast(Any, part.coordinates)]
            yield Area(rings[0], tuple(rings[1:]))
        elif part.shape == "BBox":
            yield from _boxes(part, checking)
        elif part.shape != "Point":
            message = f"{part.shape} is no geometry that a location can be asked for"
            raise not_kept(part, checking.source, message, _ALL_LITERALS)


def _point(coordinates: Any, checking: Checking) -> Point:
    longitude, latitude = coordinates[:2]
    if abs(latitude) > 90 or abs(longitude) > 180:
        checking.warn(
            f"({longitude} {latitude}) lies off the map: the longitude comes first, from -180 to "
            "180, then the latitude, from -90 to 90."
        )
    return longitude, latitude


def _ring(corners: Any, checking: Checking) -> Ring:
    return tuple(_point(each, checking) for each in corners)


def _boxes(box: Geometry, checking: Checking) -> Iterator[Area]:
    """One area; two for a box over the antimeridian, of which the west is the greater."""
    numbers = cast(tuple[Decimal, ...], box.coordinates)
    half = len(numbers) // 2
    west, south = _point(numbers[:2], checking)
    east, north = _point(numbers[half : half + 2], checking)
    if west <= east:
        yield _box(west, south, east, north)
    else:
        yield _box(west, south, _BEYOND, north)
        yield _box(-_BEYOND, south, east, north)


def _box(west: Decimal, south: Decimal, east: Decimal, north: Decimal) -> Area:
    return Area(((west, south), (east, south), (east, north), (west, north), (west, south)))
