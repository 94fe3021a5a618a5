"""The tree of a CQL2 filter (OGC 21-065r2), to which both text and JSON are parsed, and its caps.

The nodes are those of CQL2-JSON: a literal, a property, an instant, an interval, a geometry, an
array, or an operation with arguments. Functions, operators and predicates are all operations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, cast

from inference_store.inference.errors import Fault, InvalidFilter, NotKept, StoreError
from inference_store.query.cql2.operations import CONFORMANCE, OPERATIONS


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


Shape: TypeAlias = (
    Literal["Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon"]
    | Literal["GeometryCollection", "BBox"]
)
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
    """An operator, predicate or function, by its name in OPERATIONS, applied to arguments."""

    op: str
    args: "tuple[Node, ...]"
    at: SourceRange = field(default=NOWHERE, compare=False)


Node: TypeAlias = Scalar | Instant | Interval | Geometry | Named | Listed | Operation


def inside(node: Node) -> Iterator[Node]:
    """Yield the children of a node."""
    match node:
        case Operation(args=parts) | Listed(items=parts) | Geometry(geometries=parts):
            yield from parts
        case Interval(start, end):
            yield from (bound for bound in (start, end) if bound is not None)


def change_inside(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return the node with each child changed, but for the members of a geometry."""
    match node:
        case Operation(args=args):
            return replace(node, args=tuple(map(change, args)))
        case Listed(items=items):
            return replace(node, items=tuple(map(change, items)))
        case Interval(start, end):
            start, end = (None if bound is None else change(bound) for bound in (start, end))
            return Interval(start, end, at=node.at)
    return node


def expand(node: Operation) -> Node:
    """Return the operations that this one is short for; itself, if it is not."""
    means = OPERATIONS[node.op].means if node.op in OPERATIONS else None
    return node if means is None else _build(means(*node.args), node.at)


def _build(short: Any, at: SourceRange) -> Node:
    if not isinstance(short, tuple):
        return cast(Node, short)
    op, args = short
    return Operation(op, tuple(_build(arg, at) for arg in args), at)


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


# A refused part of a filter, and the error that shows its place: line, column, carets.

_SHOWN: Final = 76  # characters of a line that are shown around the place
_BEFORE: Final = 40


def where(at: SourceRange, source: str | None) -> str:
    """Return the place for people: `line 1, column 8`, or the path in JSON."""
    if source is None or at.start is None:
        return at.path
    return "line {}, column {}".format(*_line_and_column(at.start, source))


def _line_and_column(offset: int, source: str) -> tuple[int, int]:
    before = source[:offset].split("\n")
    return len(before), len(before[-1]) + 1


def pointed(at: SourceRange, source: str) -> str:
    """Return the line of a text, and under it carets at the place."""
    start = at.start or 0
    number, column = _line_and_column(start, source)
    line, column = source.split("\n")[number - 1], column - 1
    cut = max(0, column - _BEFORE) if len(line) > _SHOWN else 0
    excerpt = line[cut : cut + _SHOWN]
    width = min((at.end or start) - start, len(excerpt) - (column - cut))
    # every character one column wide, so that the carets stand under the place
    shown = "".join(letter if letter.isprintable() else " " for letter in excerpt)
    return f"  {shown}\n  {' ' * (column - cut)}{'^' * max(1, width)}"


@dataclass(eq=False)
class Refusal(Exception):
    """A refused part: the message, the place, and suggestions.

    `conformance`: the unsupported class. `error`: the error to raise if the filter can be read.
    """

    message: str
    at: SourceRange
    suggestions: Sequence[str] = ()
    conformance: str | None = field(default=None, kw_only=True)
    error: type[StoreError] | None = field(default=None, kw_only=True)
    meant: str | None = field(default=None, init=False)

    def hint(self, meant: str | None) -> "Refusal":
        """Add what was probably meant, in place of an earlier hint."""
        if meant is not None:
            self.meant, self.suggestions = meant, (meant, *self.suggestions)
        return self


def error_of(refused: Refusal, source: str | None) -> StoreError:
    """Return the error to raise; `source`: the text of the filter, if it was sent as text."""
    hint = "" if refused.meant is None else f"; probably meant: {refused.meant}"
    at, described, place = refused.at, refused.message + hint, tuple[int, ...]()
    if source is not None and at.start is not None:
        # carets under the text point at the place
        described = f"{where(at, source)}: {described}\n{pointed(at, source)}"
        length = max(1, (at.end or at.start) - at.start)
        place = (*_line_and_column(at.start, source), length)
    faults = [Fault(at.path, described, tuple(refused.suggestions), *place)]
    if refused.conformance is not None:
        lacking = CONFORMANCE[refused.conformance]
        detail = f"{refused.message}; it belongs to the conformance class {lacking.title}"
        return NotKept(f"{detail} ({lacking.uri}), which is not supported.", faults=faults)
    detail = f"{where(refused.at, source)}: {refused.message}{hint or '.'}"
    if refused.error is not None:
        return refused.error(detail, faults=faults)
    what = "filter" if "filter" in refused.at.path else refused.at.path
    return InvalidFilter(f"The {what} cannot be read, {detail}", faults=faults)
