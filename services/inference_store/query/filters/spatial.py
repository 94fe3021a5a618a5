"""The spatial functions: relations of the inference's location and geometries."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, cast

from inference_store.query.cql2 import OPERATIONS
from inference_store.query.cql2.tree import Geometry, Operation

from . import geometry, operands
from .facts import Point
from .filter_check import FilterCheck
from .map_bounds import point_of
from .refusals import meaningless, not_kept
from .typed import And, Area, Fixed, Located, Not, Predicate, Ring

SPATIAL_FUNCTIONS: Final = frozenset({"s_intersects", "s_within", "s_disjoint"})
_ALL_LITERALS: Final = "basic-spatial-functions-plus"
_BEYOND: Final = Decimal(181)
"""A degree beyond the antimeridian, where nothing lies: it is no edge of a box across it."""


def check_spatial_relation(node: Operation, checking: FilterCheck) -> Predicate:
    """Return the predicate for a spatial function. Raises InvalidFilter, NotKept."""
    op = node.op.lower()
    operands.refuse_inside(node, checking)
    match node.args:
        case (Geometry() as left, Geometry() as right):
            return _of_two(node, left, right, checking)
    if all(operands.is_location(arg, checking) for arg in node.args):
        nowhere = Located("intersects")
        return nowhere if op == "s_disjoint" else Not(nowhere)
    shape, turned = _geometry(node, checking)
    areas, points = _shapes(shape, checking)
    if op == "s_within":
        return _is_it(areas, points) if turned else Located("within", areas, points)
    located = Located("intersects", areas, points)
    return Not(located) if op == "s_disjoint" else located


def _of_two(node: Operation, left: Geometry, right: Geometry, checking: FilterCheck) -> Fixed:
    """Decide the relation of two literal geometries."""
    op, shapes = node.op.lower(), [_shapes(shape, checking) for shape in (left, right)]
    (areas, points), (other_areas, other_points) = shapes
    left_size, right_size = (sum(map(geometry.edges_of, a)) + len(p) for a, p in shapes)
    checking.hold(left_size * right_size, node)
    if op == "s_within":
        if areas:
            message = "S_WITHIN of an area that is written out is not kept"
            raise not_kept(left, checking.source, message, OPERATIONS[op].conformance)
        return Fixed(geometry.within(points, other_areas, other_points))
    meet = geometry.meet(areas, points, other_areas, other_points)
    return Fixed(meet is (op == "s_intersects"))


def _shapes(of: Geometry, checking: FilterCheck) -> tuple[tuple[Area, ...], tuple[Point, ...]]:
    return tuple(_areas(of, checking)), tuple(_points(of, checking))


def _is_it(areas: tuple[Area, ...], points: tuple[Point, ...]) -> Predicate:
    """Return the predicate that a geometry lies in the location: a point may, an area never."""
    if areas:
        some = Located("intersects", areas)
        return And((some, Not(some)))
    return And(tuple(Located("intersects", points=(point,)) for point in points))


def _geometry(node: Operation, checking: FilterCheck) -> tuple[Geometry, bool]:
    """Return the geometry, and whether it comes before the location."""
    left, right = node.args
    if isinstance(right, Geometry) and operands.is_location(left, checking):
        return right, False
    if isinstance(left, Geometry) and operands.is_location(right, checking):
        return left, True
    message = (
        f"{node.op.upper()} takes the location and a geometry that is written out, or two of those"
    )
    raise meaningless(node, checking.source, message, ("location",))


def _parts(whole: Geometry) -> Iterator[Geometry]:
    """Yield single points, boxes and polygons, and unsupported geometries."""
    many: dict[str, Any] = {"MultiPoint": "Point", "MultiPolygon": "Polygon"}
    for part in whole.geometries:
        yield from _parts(part)
    if whole.shape in many:
        for coordinates in cast(Any, whole.coordinates):
            yield Geometry(many[whole.shape], coordinates, at=whole.at)
    elif whole.shape != "GeometryCollection":
        yield whole


def _points(whole: Geometry, checking: FilterCheck) -> Iterator[Point]:
    for part in _parts(whole):
        if part.shape == "Point":
            yield point_of(part.coordinates, part, checking)


def _areas(whole: Geometry, checking: FilterCheck) -> Iterator[Area]:
    for part in _parts(whole):
        if part.shape == "Polygon":
            rings = [_ring(ring, part, checking) for ring in cast(Any, part.coordinates)]
            yield Area(rings[0], tuple(rings[1:]))
        elif part.shape == "BBox":
            yield from _boxes(part, checking)
        elif part.shape != "Point":
            message = f"{part.shape} is no geometry that a location can be asked for"
            raise not_kept(part, checking.source, message, _ALL_LITERALS)


def _ring(corners: Any, at: Geometry, checking: FilterCheck) -> Ring:
    return tuple(point_of(corner, at, checking) for corner in corners)


def _boxes(box: Geometry, checking: FilterCheck) -> Iterator[Area]:
    """Yield the area of a box; two for one over the antimeridian, whose west exceeds its east."""
    numbers = cast(tuple[Decimal, ...], box.coordinates)
    half = len(numbers) // 2
    west, south = point_of(numbers[:2], box, checking)
    east, north = point_of(numbers[half : half + 2], box, checking)
    if west <= east:
        yield _box(west, south, east, north)
    else:
        yield _box(west, south, _BEYOND, north)
        yield _box(-_BEYOND, south, east, north)


def _box(west: Decimal, south: Decimal, east: Decimal, north: Decimal) -> Area:
    return Area(((west, south), (east, south), (east, north), (west, north), (west, south)))
