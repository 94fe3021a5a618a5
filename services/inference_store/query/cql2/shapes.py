"""Geometries by their shape: how deep their coordinates are nested, and what makes them whole."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from .caps import POSITIONS
from .refused import Refused
from .tree import Coordinates, Geometry, Shape, SourceRange

Raw: TypeAlias = "tuple[Decimal | Raw, ...]"
"""Coordinates as they were written, before their nesting has been looked at."""

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
"""How many levels of lists stand around the positions of a shape."""
DEEPEST: Final = max(LEVELS.values()) + 1
_LEAST: Final = MappingProxyType(
    {"LineString": 2, "MultiLineString": 2} | dict.fromkeys(("Polygon", "MultiPolygon"), 4)
)


def geometry(shape: Shape, raw: Raw, at: SourceRange) -> Geometry:
    """The geometry. Raises Refused for coordinates that are none of this shape."""
    if shape == "BBox":
        return Geometry(shape, _box(raw, at), at=at)
    level = [raw]
    for _ in range(LEVELS[shape]):
        level = [cast(Raw, part) for parts in level for part in _lists(parts, shape, at)]
    positions = [_position(part, shape, at) for part in level]
    if len(positions) > POSITIONS:
        raise Refused(f"a geometry has at most {POSITIONS:,} positions", at)
    if len({len(position) for position in positions}) > 1:
        raise Refused("all positions of a geometry have two numbers, or all have three", at)
    for line in _lines(shape, raw):
        _refuse_line(shape, line, at)
    return Geometry(shape, cast(Coordinates, raw), at=at)


def collection(parts: Sequence[Geometry], at: SourceRange) -> Geometry:
    """A GeometryCollection. Raises Refused."""
    if not parts:
        raise Refused("a GEOMETRYCOLLECTION has at least one geometry", at)
    if any(part.shape in {"GeometryCollection", "BBox"} for part in parts):
        raise Refused("a GEOMETRYCOLLECTION holds neither a BBOX nor a collection", at)
    if sum(map(_positions_in, parts)) > POSITIONS:
        raise Refused(f"a GEOMETRYCOLLECTION has at most {POSITIONS:,} positions", at)
    return Geometry("GeometryCollection", geometries=tuple(parts), at=at)


def _positions_in(part: Geometry) -> int:
    level: list[Any] = [part.coordinates]
    for _ in range(LEVELS[part.shape]):
        level = [each for parts in level for each in parts]
    return len(level)


def _box(raw: Raw, at: SourceRange) -> tuple[Decimal, ...]:
    numbers = tuple(each for each in raw if isinstance(each, Decimal))
    if len(numbers) != len(raw) or len(raw) not in {4, 6}:
        raise Refused("a BBOX has four numbers, west, south, east, north, or six with heights", at)
    half = len(numbers) // 2
    if numbers[1] > numbers[half + 1]:
        raise Refused("the south of a BBOX is not above its north: west, south, east, north", at)
    return numbers


def _lists(parts: Raw, shape: str, at: SourceRange) -> Raw:
    if not parts or any(isinstance(part, Decimal) for part in parts):
        raise Refused(f"these are no coordinates of a {shape}: {_model(shape)}", at)
    return parts


def _position(part: Raw, shape: str, at: SourceRange) -> Raw:
    if not all(isinstance(each, Decimal) for each in part):
        raise Refused(f"these are no coordinates of a {shape}: {_model(shape)}", at)
    if len(part) not in {2, 3}:
        raise Refused("a position is a longitude and a latitude, and perhaps a height", at)
    return part


def _lines(shape: str, raw: Raw) -> list[Raw]:
    """The lines and rings of a shape that has some."""
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
        raise Refused(f"a {what} has at least {least} positions", at)
    if least == 4 and line[0] != line[-1]:
        raise Refused("a ring ends where it begins: write its first position again at its end", at)


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
