"""Geometries by their shape: the nesting of their coordinates, and the rules for valid ones."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from .caps import POSITIONS
from .refusal import Refusal
from .tree import Coordinates, Geometry, Shape, SourceRange

Raw: TypeAlias = "tuple[Decimal | Raw, ...]"
"""Coordinates as they were written, before their nesting is checked."""

LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "Point": 0,
        "LineString": 1,
        "MultiPoint": 1,
        "Polygon": 2,
        "MultiLineString": 2,
        "MultiPolygon": 3,
    }
)
"""The levels of lists around the positions of a shape."""
DEEPEST: Final = max(LEVELS.values()) + 1
_LEAST: Final = MappingProxyType(
    {"LineString": 2, "MultiLineString": 2} | dict.fromkeys(("Polygon", "MultiPolygon"), 4)
)


def geometry(shape: Shape, raw: Raw, at: SourceRange) -> Geometry:
    """Return the geometry. Raises Refusal for coordinates that are not of this shape."""
    if shape == "BBox":
        return Geometry(shape, _box(raw, at), at=at)
    level = [raw]
    for _ in range(LEVELS[shape]):
        level = [cast(Raw, part) for parts in level for part in _lists(parts, shape, at)]
    positions = [_position(part, shape, at) for part in level]
    if len(positions) > POSITIONS:
        raise Refusal(f"a geometry has at most {POSITIONS:,} positions", at)
    if len({len(position) for position in positions}) > 1:
        raise Refusal("all positions of a geometry have two numbers, or all have three", at)
    for line in _lines(shape, raw):
        _refuse_line(shape, line, at)
    return Geometry(shape, cast(Coordinates, raw), at=at)


def collection(parts: Sequence[Geometry], at: SourceRange) -> Geometry:
    """Return a GeometryCollection. Raises Refusal."""
    if not parts:
        raise Refusal("a GEOMETRYCOLLECTION has at least one geometry", at)
    if any(part.shape in {"GeometryCollection", "BBox"} for part in parts):
        raise Refusal("a GEOMETRYCOLLECTION holds neither a BBOX nor a collection", at)
    if sum(map(_positions_in, parts)) > POSITIONS:
        raise Refusal(f"a GEOMETRYCOLLECTION has at most {POSITIONS:,} positions", at)
    return Geometry("GeometryCollection", geometries=tuple(parts), at=at)


def _positions_in(part: Geometry) -> int:
    level: list[Any] = [part.coordinates]
    for _ in range(LEVELS[part.shape]):
        level = [part_inside for parts in level for part_inside in parts]
    return len(level)


def _box(raw: Raw, at: SourceRange) -> tuple[Decimal, ...]:
    numbers = tuple(number for number in raw if isinstance(number, Decimal))
    if len(numbers) != len(raw) or len(raw) not in {4, 6}:
        raise Refusal("a BBOX has four numbers, west, south, east, north, or six with heights", at)
    half = len(numbers) // 2
    if numbers[1] > numbers[half + 1]:
        raise Refusal("the south of a BBOX is not above its north: west, south, east, north", at)
    return numbers


def _lists(parts: Raw, shape: str, at: SourceRange) -> Raw:
    if not parts or any(isinstance(part, Decimal) for part in parts):
        raise Refusal(f"these are no coordinates of a {shape}: {_model(shape)}", at)
    return parts


def _position(part: Raw, shape: str, at: SourceRange) -> Raw:
    if not all(isinstance(number, Decimal) for number in part):
        raise Refusal(f"these are no coordinates of a {shape}: {_model(shape)}", at)
    if len(part) not in {2, 3}:
        raise Refusal("a position is a longitude and a latitude, and perhaps a height", at)
    return part


def _lines(shape: str, raw: Raw) -> list[Raw]:
    """Return the lines and rings of a shape, if it has any."""
    if shape not in _LEAST:
        return []
    lines = [raw]
    for _ in range(LEVELS[shape] - 1):
        lines = [cast(Raw, part) for parts in lines for part in parts]
    return lines


def _refuse_line(shape: str, line: Raw, at: SourceRange) -> None:
    least = _LEAST[shape]
    if len(line) < least:
        what = "ring" if least == 4 else "line"
        raise Refusal(f"a {what} has at least {least} positions", at)
    if least == 4 and line[0] != line[-1]:
        raise Refusal("a ring ends where it begins: write its first position again at its end", at)


def _model(shape: str) -> str:
    models = {
        "Point": "POINT(12.5 41.9)",
        "LineString": "LINESTRING(0 0, 1 1)",
        "MultiPoint": "MULTIPOINT((0 0), (1 1))",
        "Polygon": "POLYGON((0 0, 1 0, 1 1, 0 0))",
        "MultiLineString": "MULTILINESTRING((0 0, 1 1), (2 2, 3 3))",
        "MultiPolygon": "MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))",
    }
    return f"write {models[shape]}"
