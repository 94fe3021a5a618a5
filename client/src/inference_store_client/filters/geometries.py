"""Places in filters. Longitude comes first, as in GeoJSON."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .expression import Condition, Value
from .nodes import make_operation

Geometry: TypeAlias = Mapping[str, Any]
"""GeoJSON, or a box."""
Position: TypeAlias = tuple[float, float]
"""Longitude and latitude."""


def point(longitude: float, latitude: float) -> Geometry:
    """Make a point."""
    return {"type": "Point", "coordinates": [longitude, latitude]}


def bbox(west: float, south: float, east: float, north: float) -> Geometry:
    """Make a box; if its west is greater than its east, it crosses the antimeridian."""
    return {"bbox": [west, south, east, north]}


def polygon(*rings: Sequence[Position]) -> Geometry:
    """Make a polygon of its outline and its holes; each ring ends where it begins."""
    return {"type": "Polygon", "coordinates": [[list(at) for at in ring] for ring in rings]}


def s_intersects(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is in a geometry, or on its edge."""
    return Condition(make_operation("s_intersects", location, geometry))


def s_within(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is inside a geometry."""
    return Condition(make_operation("s_within", location, geometry))


def s_disjoint(location: Value, geometry: Geometry) -> Condition:
    """Whether a place is outside a geometry."""
    return Condition(make_operation("s_disjoint", location, geometry))
