"""The tree of a CQL2 filter (OGC 21-065r2), to which both text and JSON are parsed, and its caps.

The nodes are those of CQL2-JSON: a literal, a property, an instant, an interval, a geometry, an
array, or an operation with arguments. Functions, operators and predicates are all operations.
"""

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Final, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class SourceRange:
    """The place of a node: characters [start, end) of the text, or a path into the JSON.

    `path` begins with the body's field: `filter`, `filter.args[1]`.
    """

    path: str = "filter"
    start: int | None = None
    end: int | None = None


NOWHERE = SourceRange()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, an exact number or a truth value."""

    value: str | Decimal | bool
    at: SourceRange = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Instant:
    """`DATE('…')` or `TIMESTAMP('…')`; a timestamp is in UTC, to the microsecond."""

    value: date | datetime
    at: SourceRange = field(default=NOWHERE, compare=False)
    relative: str | None = field(default=None, compare=False)
    """The relative time that was written, as in `now() - duration('PT1H')`."""


@dataclass(frozen=True, slots=True)
class Interval:
    """`INTERVAL(a, b)`; None is the open end `'..'`."""

    start: "Node | None"
    end: "Node | None"
    at: SourceRange = field(default=NOWHERE, compare=False)


Shape: TypeAlias = Literal[
    "Point",
    "LineString",
    "Polygon",
    "MultiPoint",
    "MultiLineString",
    "MultiPolygon",
    "GeometryCollection",
    "BBox",
]
Coordinates: TypeAlias = "tuple[Decimal, ...] | tuple[Coordinates, ...]"


@dataclass(frozen=True, slots=True)
class Geometry:
    """A geometry, longitude first, nested as in GeoJSON; a BBox is its four or six numbers."""

    shape: Shape
    coordinates: Coordinates = ()
    geometries: "tuple[Geometry, ...]" = ()
    """The members of a GeometryCollection."""
    at: SourceRange = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Named:
    """A property by name. `quoted`: it was written in double quotes."""

    name: str
    quoted: bool = field(default=False, compare=False)
    at: SourceRange = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """An array of values: the operand of an array function, the list of `IN`."""

    items: "tuple[Node, ...]"
    at: SourceRange = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator, predicate or function applied, by its name in CQL2-JSON.

    `and or not = <> < > <= >= + - * / % div ^ like between in isNull casei accenti s_intersects …
    t_after … a_contains …`; functions of this store by their own names (`prediction`).
    """

    op: str
    args: "tuple[Node, ...]"
    at: SourceRange = field(default=NOWHERE, compare=False)


Node: TypeAlias = Scalar | Instant | Interval | Geometry | Named | Listed | Operation


MOST_BYTES: Final = 100_000
"""Bytes of a text filter in UTF-8, or of all texts of a JSON filter together."""
MOST_TOKENS: Final = 10_000
"""Names, numbers, texts, words and signs of a text filter: the cap bounds the time to parse it."""
MOST_DEPTH: Final = 64
"""Operations, arrays and intervals inside each other."""
MOST_NODES: Final = 2_000
"""Operations, names and values together."""
MOST_ITEMS: Final = 1_000
"""Items of one array or `IN` list."""
MOST_POSITIONS: Final = 1_000
"""Positions of one geometry."""
