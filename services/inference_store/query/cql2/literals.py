"""Literals of both encodings: numbers, dates, times, texts, and geometries by their shape."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from inference_store.inference.iso_durations import read_duration
from inference_store.inference.json_text import exact, storable
from inference_store.inference.metadata.values import MetadataCaps
from inference_store.inference.metadata.values import read_timestamp as parse_timestamp

from .tree import (
    MOST_POSITIONS,
    Coordinates,
    Geometry,
    Instant,
    Refusal,
    Scalar,
    Shape,
    SourceRange,
)

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ESCAPES: Final = {
    "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r",
    "'": "'", "\\": "\\",
}  # fmt: skip
_ESCAPED: Final = re.compile(r"''|\\([abtnvfr'\\])")
_TO_ESCAPE: Final = re.compile(r"\\(?=[abtnvfr'\\\a\b\t\n\v\f\r]|\Z)|['\a\b\t\n\v\f\r]")
_ESCAPE_OF: Final = {meant: f"\\{letter}" for letter, meant in _ESCAPES.items()} | {"'": "''"}
CAPS: Final = MetadataCaps()
"""The caps of stored numbers: every stored number can be written in a filter."""


def number(text: str, at: SourceRange) -> Decimal:
    """Return the exact number. Raises Refusal if it is over the caps of stored numbers."""
    try:
        value = exact(text, digits=CAPS.digits, exponent=CAPS.exponent)
    except ValueError:
        raise Refusal("this is not a decimal number", at) from None
    if value is None:
        bounds = f"{CAPS.digits:,} digits and an exponent of {CAPS.exponent}"
        raise Refusal(f"a number has at most {bounds}", at)
    return value


def unescaped(literal: str) -> str:
    """Return the text between single quotes, without escapes.

    A backslash before any other character stays, for LIKE.
    """
    inner = literal[1:-1]
    if "\\" not in inner and "'" not in inner:
        return inner
    return _ESCAPED.sub(lambda match: _ESCAPES[match[1] or "'"], inner)


def escaped(text: str) -> str:
    """Return a text in single quotes, the inverse of `unescaped`."""
    return f"'{_TO_ESCAPE.sub(lambda match: _ESCAPE_OF[match[0]], text)}'"


def text_of(value: str, at: SourceRange) -> Scalar:
    """Return a text. Raises Refusal if Postgres cannot store it: no stored text equals it."""
    if not storable(value):
        raise Refusal("a text holds neither NUL nor half a surrogate pair", at)
    return Scalar(value, at)


def read_date(text: str, at: SourceRange) -> Instant:
    """Read a date such as `2026-11-01`. Raises Refusal."""
    if _DATE.fullmatch(text) is None:
        _, flag = parse_timestamp(text, CAPS)
        suggestions = [f"TIMESTAMP('{text}')"] if flag is None else []
        raise Refusal("a date is written 2026-11-01", at, suggestions)
    try:
        return Instant(date.fromisoformat(text), at)
    except ValueError as wrong:
        raise Refusal(f"there is no such day: {wrong}", at) from None


def read_timestamp(text: str, at: SourceRange) -> Instant:
    """Read a timestamp such as `2026-11-01T10:00:00Z`, or with an offset, as metadata is read.

    The result is in UTC, floored to the microsecond. Raises Refusal.
    """
    value, flag = parse_timestamp(text, CAPS)
    meant = [f"TIMESTAMP('{spelled(Instant(value))}')"] if value is not None else []
    if _DATE.fullmatch(text):
        meant = [f"DATE('{text}')"]
    elif value is not None and flag is None:
        return Instant(value, at)
    elif read_duration(text) is not None:
        meant = [f"now() - duration('{text}')"]
    message = "a timestamp is written 2026-11-01T10:00:00Z"
    try:
        datetime.fromisoformat(text)
    except ValueError as wrong:
        if not str(wrong).startswith("Invalid isoformat"):
            message = f"there is no such time: {wrong}"
    raise Refusal(message, at, meant)


def read_instant(text: str, at: SourceRange) -> Instant | None:
    """Read a bound of an interval: a date, a timestamp, or None for the open end `..`."""
    if text == "..":
        return None
    return read_date(text, at) if _DATE.fullmatch(text) else read_timestamp(text, at)


def spelled(instant: Instant) -> str:
    """Return the text of an instant, as in `DATE('…')` and `TIMESTAMP('…')`."""
    if not isinstance(instant.value, datetime):
        return instant.value.isoformat()
    return instant.value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


Raw: TypeAlias = "tuple[Decimal | Raw, ...]"
"""Coordinates as they were written, before their nesting is checked."""

_MODELS: Final[Mapping[str, tuple[int, str]]] = {
    "Point": (0, "POINT(12.5 41.9)"),
    "LineString": (1, "LINESTRING(0 0, 1 1)"),
    "MultiPoint": (1, "MULTIPOINT((0 0), (1 1))"),
    "Polygon": (2, "POLYGON((0 0, 1 0, 1 1, 0 0))"),
    "MultiLineString": (2, "MULTILINESTRING((0 0, 1 1), (2 2, 3 3))"),
    "MultiPolygon": (3, "MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))"),
}
LEVELS: Final = MappingProxyType({shape: levels for shape, (levels, _) in _MODELS.items()})
"""The levels of lists around the positions of a shape."""
DEEPEST: Final = max(LEVELS.values()) + 1


def make_geometry(shape: Shape, raw: Raw, at: SourceRange) -> Geometry:
    """Return the geometry. Raises Refusal for coordinates that are not of this shape."""
    if shape == "BBox":
        return Geometry(shape, _box(raw, at), at=at)
    positions = list(_positions(shape, raw, LEVELS[shape], at))
    if len(positions) > MOST_POSITIONS:
        raise Refusal(f"a geometry has at most {MOST_POSITIONS:,} positions", at)
    if len({len(position) for position in positions}) > 1:
        raise Refusal("all positions of a geometry have two numbers, or all have three", at)
    return Geometry(shape, cast(Coordinates, raw), at=at)


def _positions(shape: Shape, raw: Raw, levels: int, at: SourceRange) -> Iterator[Raw]:
    """Yield the positions. Raises Refusal for other lists, and for a ring that does not close."""
    if not raw or {isinstance(part, Decimal) for part in raw} != {levels == 0}:
        raise Refusal(f"these are no coordinates of a {shape}: write {_MODELS[shape][1]}", at)
    if levels == 0:
        if len(raw) not in {2, 3}:
            raise Refusal("a position is a longitude and a latitude, and perhaps a height", at)
        yield raw
        return
    for part in raw:
        yield from _positions(shape, cast(Raw, part), levels - 1, at)
    if levels == 1 and shape in {"Polygon", "MultiPolygon"}:
        if len(raw) < 4:
            raise Refusal("a ring has at least 4 positions", at)
        if raw[0] != raw[-1]:
            message = "a ring ends where it begins: write its first position again at its end"
            raise Refusal(message, at)


def make_collection(members: Sequence[Any], at: SourceRange) -> Geometry:
    """Return a GeometryCollection. Raises Refusal."""
    parts = [part for part in members if isinstance(part, Geometry)]
    if not parts or len(parts) < len(members):
        raise Refusal("a GEOMETRYCOLLECTION holds geometries, one or more", at)
    if any(part.shape in {"GeometryCollection", "BBox"} for part in parts):
        raise Refusal("a GEOMETRYCOLLECTION holds neither a BBOX nor a collection", at)
    raws = [(part.shape, cast(Raw, part.coordinates), LEVELS[part.shape], at) for part in parts]
    if sum(1 for raw in raws for _ in _positions(*raw)) > MOST_POSITIONS:
        raise Refusal(f"a GEOMETRYCOLLECTION has at most {MOST_POSITIONS:,} positions", at)
    return Geometry("GeometryCollection", geometries=tuple(parts), at=at)


def _box(raw: Raw, at: SourceRange) -> tuple[Decimal, ...]:
    numbers = tuple(number for number in raw if isinstance(number, Decimal))
    if len(numbers) != len(raw) or len(raw) not in {4, 6}:
        raise Refusal("a BBOX has four numbers, west, south, east, north, or six with heights", at)
    if numbers[1] > numbers[len(numbers) // 2 + 1]:
        raise Refusal("the south of a BBOX is not above its north: west, south, east, north", at)
    return numbers
