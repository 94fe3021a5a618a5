"""The tree to CQL2-JSON."""

from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import Json, Number

from . import caps, literals
from .refused import Refused, error_of
from .tree import (
    Coordinates,
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)
from .verify import measure

WRITTEN_DEPTH: Final = 2 * caps.DEPTH
"""Trees that are written may be deeper than those read: filters are joined with others."""


def to_json(node: Node) -> Json:
    """The tree in CQL2-JSON. Numbers are int, float, or `Number` where a float is not exact.

    Write it with `json_text.write_json`, which writes every number exactly.
    Raises InvalidFilter for a tree deeper than WRITTEN_DEPTH.
    """
    refuse_deep(node)
    return _json(node)


def refuse_deep(node: Node) -> None:
    """Raise InvalidFilter for a tree that is too deep to be written."""
    try:
        measure(node, depth=WRITTEN_DEPTH)
    except Refused as refused:
        raise error_of(refused, None) from None


def _json(node: Node) -> Json:
    match node:
        case Scalar(value):
            found: Json = _number(value) if isinstance(value, Decimal) else value
        case Named(name):
            found = {"property": name}
        case Instant():
            found = {_instant_member(node): literals.spelled(node)}
        case Interval(start, end):
            found = {"interval": [_bound(start), _bound(end)]}
        case Geometry():
            found = _geometry(node)
        case Listed(items):
            found = [_json(item) for item in items]
        case Operation(op, args):
            found = {"op": op, "args": [_json(arg) for arg in args]}
    return found


def _instant_member(node: Instant) -> str:
    return "timestamp" if "T" in literals.spelled(node) else "date"


def _bound(bound: Node | None) -> Json:
    if bound is None:
        return ".."
    return literals.spelled(bound) if isinstance(bound, Instant) else _json(bound)


def _geometry(node: Geometry) -> Json:
    if node.shape == "BBox":
        return {"bbox": _coordinates(node.coordinates)}
    if node.shape == "GeometryCollection":
        return {"type": node.shape, "geometries": [_geometry(part) for part in node.geometries]}
    return {"type": node.shape, "coordinates": _coordinates(node.coordinates)}


def _coordinates(part: Coordinates) -> list[Json]:
    return [_number(each) if isinstance(each, Decimal) else _coordinates(each) for each in part]


def _number(value: Decimal) -> Json:
    """As Python's own number where that is exact, so that any JSON writer does it well."""
    exponent = value.as_tuple().exponent
    if exponent == 0 and value.adjusted() < 18 and not (value.is_zero() and value.is_signed()):
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else Number(str(value))
