"""The spatial functions: where the inference's location lies."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, cast

from inference_store.query.cql2 import OPERATIONS
from inference_store.query.cql2.tree import Geometry, Operation

from . import geometry, operands
from .checking import Checking
from .facts import Point
from .on_the_map import point_of
from .refusals import meaningless, not_kept
from .typed import And, Area, Fixed, Located, Not, Predicate, Ring

SPATIAL_FUNCTIONS: Final = frozenset({"s_intersects", "s_within", "s_disjoint"})
_ALL_LITERALS: Final = "basic-spatial-functions-plus"
_BEYOND: Final = Decimal(181)
"""A degree past the antimeridian, where nothing lies: no edge of a box that crosses it."""


def check_spatial_relation(node: Operation, checking: Checking) -> Predicate:
    """How the location, or a geometry, lies to a geometry. Raises InvalidFilter, NotKept."""
    op = node.op.lower()
    operands.refuse_inside(node, checking)
    match node.args:
        case (Geometry() as one, Geometry() as other):
            return _of_two(node, one, other, checking)
    if all(operands.is_location(each, checking) for each in node.args):
        nowhere = Located("intersects")
        return nowhere if op == "s_disjoint" else Not(nowhere)
    shape, turned = _geometry(node, checking)
    areas, points = _shapes(shape, checking)
    if op == "s_within":
        return _is_it(areas, points) if turned else Located("within", areas, points)
    located = Located("intersects", areas, points)
    return Not(located) if op == "s_disjoint" else located


def _of_two(node: Operation, one: Geometry, other: Geometry, checking: Checking) -> Fixed:
    """Two geometries that are written out: decided here."""
    op, shapes = node.op.lower(), [_shapes(each, checking) for each in (one, other)]
    (areas, points), (other_areas, other_points) = shapes
    one_size, other_size = (sum(map(geometry.edges_of, a)) + len(p) for a, p in shapes)
    checking.hold(one_size * other_size, node)
    if op == "s_within":
        if areas:
            message = "S_WITHIN of an area that is written out is not kept"
            raise not_kept(one, checking.source, message, OPERATIONS[op].conformance)
        return Fixed(geometry.within(points, other_areas, other_points))
    meet = geometry.meet(areas, points, other_areas, other_points)
    return Fixed(meet is (op == "s_intersects"))


def _shapes(of: Geometry, checking: Checking) -> tuple[tuple[Area, ...], tuple[Point, ...]]:
    return tuple(_areas(of, checking)), tuple(_points(of, checking))


def _is_it(areas: tuple[Area, ...], points: tuple[Point, ...]) -> Predicate:
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
    message = (
        f"{node.op.upper()} takes the location and a geometry that is written out, or two of those"
    )
    raise meaningless(node, checking.source, message, ("location",))


def _parts(whole: Geometry) -> Iterator[Geometry]:
    """Single points, boxes and polygons, and whatever is not kept."""
    many: dict[str, Any] = {"MultiPoint": "Point", "MultiPolygon": "Polygon"}
    for each in whole.geometries:
        yield from _parts(each)
    if whole.shape in many:
        for coordinates in cast(Any, whole.coordinates):
            yield Geometry(many[whole.shape], coordinates, at=whole.at)
    elif whole.shape != "GeometryCollection":
        yield whole


def _points(whole: Geometry, checking: Checking) -> Iterator[Point]:
    for part in _parts(whole):
        if part.shape == "Point":
            yield point_of(part.coordinates, part, checking)


def _areas(whole: Geometry, checking: Checking) -> Iterator[Area]:
    for part in _parts(whole):
        if part.shape == "Polygon":
            rings = [_ring(each, part, checking) for each in cast(Any, part.coordinates)]
            yield Area(rings[0], tuple(rings[1:]))
        elif part.shape == "BBox":
            yield from _boxes(part, checking)
        elif part.shape != "Point":
            message = f"{part.shape} is no geometry that a location can be asked for"
            raise not_kept(part, checking.source, message, _ALL_LITERALS)


def _ring(corners: Any, at: Geometry, checking: Checking) -> Ring:
    return tuple(point_of(each, at, checking) for each in corners)


def _boxes(box: Geometry, checking: Checking) -> Iterator[Area]:
    """One area; two for a box over the antimeridian, of which the west is the greater."""
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
