"""Writes the tree as CQL2-JSON."""

from decimal import Decimal
from typing import Final

from inference_store.inference.json_text import Json, Number

from . import caps, literals
from .refusal import Refusal, error_of
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
"""Written trees may be deeper than parsed ones, because filters are combined."""


def to_json(node: Node) -> Json:
    """Return the tree in CQL2-JSON. Numbers are int, float, or `Number` if a float is not exact.

    Write it with `json_text.write_json`, which writes every number exactly.
    Raises InvalidFilter for a tree deeper than WRITTEN_DEPTH.
    """
    refuse_deep(node)
    return _json(node)


def refuse_deep(node: Node) -> None:
    """Raise InvalidFilter for a tree that is too deep to be written."""
    try:
        measure(node, depth=WRITTEN_DEPTH)
    except Refusal as refused:
        raise error_of(refused, None) from None


def _json(node: Node) -> Json:
    match node:
        case Scalar(value):
            written: Json = _number(value) if isinstance(value, Decimal) else value
        case Named(name):
            written = {"property": name}
        case Instant():
            written = {_instant_member(node): literals.spelled(node)}
        case Interval(start, end):
            written = {"interval": [_bound(start), _bound(end)]}
        case Geometry():
            written = _geometry(node)
        case Listed(items):
            written = [_json(item) for item in items]
        case Operation(op, args):
            written = {"op": op, "args": [_json(arg) for arg in args]}
    return written


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
    return [
        _number(coordinate) if isinstance(coordinate, Decimal) else _coordinates(coordinate)
        for coordinate in part
    ]


def _number(value: Decimal) -> Json:
    """Return Python's own number if it is exact, so that any JSON writer writes it correctly."""
    exponent = value.as_tuple().exponent
    if exponent == 0 and value.adjusted() < 18 and not (value.is_zero() and value.is_signed()):
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else Number(str(value))
