"""Parses CQL2-JSON to the tree."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

from inference_store.inference.json_text import (
    Json,
    Number,
    RepeatedNames,
    UnreadableJson,
    read_exactly,
)
from inference_store.inference.nearest import describe_known
from inference_store.query.cql2 import literals
from inference_store.query.cql2.literals import (
    DEEPEST,
    LEVELS,
    Raw,
    make_collection,
    make_geometry,
    read_timestamp,
)

from .operations import OPERATIONS, entry_of
from .relative import NO_CLOCK, Clock, resolve
from .tree import (
    MOST_BYTES,
    MOST_DEPTH,
    MOST_NODES,
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Refusal,
    Scalar,
    Shape,
    SourceRange,
    error_of,
)
from .verify import slip_at, verify
from .write import is_bare

_GEOMETRIES: Final = (*LEVELS, "GeometryCollection")


def parse_json(value: Json, *, path: str = "filter", clock: Clock = NO_CLOCK) -> Node:
    """Return the tree of a filter in JSON. Numbers may be int, float, Decimal or `Number`.

    Read the JSON with `json_text.read_exactly`: `read_json` rounds whole numbers beyond 64 bits,
    and decimals beyond a double.

    `path`: the field that contains the filter. Raises InvalidFilter, and NotKept for an
    unsupported conformance class.
    """
    try:
        tree = resolve(_Reading().node(value, path, 1), clock)
        verify(tree)
    except Refusal as refused:
        raise error_of(refused, None) from None
    return tree


def parse_json_text(text: str, *, path: str = "filter", clock: Clock = NO_CLOCK) -> Node:
    """Return the tree of a filter in JSON text, as in a query parameter."""
    message = f"a filter has at most {MOST_BYTES:,} bytes"
    try:
        if len(text) <= MOST_BYTES:
            return parse_json(read_exactly(text), path=path, clock=clock)
    except UnreadableJson as wrong:
        message = f"it is not JSON: {wrong}"
    raise error_of(Refusal(message, SourceRange(path)), None)


@dataclass(slots=True)
class _Reading:
    """One filter being read, with its remaining nodes and bytes. The cap bounds its recursion."""

    nodes: int = MOST_NODES
    bytes: int = MOST_BYTES

    def node(self, value: Json, path: str, level: int) -> Node:
        at = SourceRange(path)
        self._count(at, level)
        match value:
            case bool():
                return Scalar(value, at)
            case Number() | int() | float() | Decimal():
                return Scalar(_read_number(value, at), at)
            case str():
                return self._text(value, at)
            case list():
                return Listed(self._nodes(value, path, level), at)
            case dict():
                return self._object(value, at, level)
            case None:
                raise Refusal("null is not a value here; use isNull to find what is missing", at)
        raise Refusal("this is not part of a filter", at)

    def _object(self, value: Mapping[str, Json], at: SourceRange, level: int) -> Node:
        if isinstance(value, RepeatedNames):
            raise Refusal(f"a member is given twice: {', '.join(value.names)}", at)
        for member, (read, others) in _OBJECTS.items():
            if member in value:
                _refuse_others(value, {member, *others}, at)
                return read(self, value, at, level)
        members = tuple(_OBJECTS)
        raise Refusal(f"an object here has one of {', '.join(members)}", at, members)

    def _operation(self, value: Mapping[str, Json], at: SourceRange, level: int) -> Node:
        op, args = value["op"], value.get("args")
        if not isinstance(op, str) or isinstance(op, Number):
            raise Refusal("`op` is a text", SourceRange(f"{at.path}.op"))
        if not isinstance(args, list):
            raise Refusal(f"`args` of {op[:64]} is a list", SourceRange(f"{at.path}.args"))
        self._text(op, SourceRange(f"{at.path}.op"))
        entry = entry_of(op)
        if entry is None and not is_bare(op):
            supported = [name for name, known in OPERATIONS.items() if known.is_supported]
            message = f"there is no operation {op[:64]!r}; {describe_known((), supported)}"
            raise slip_at(op, at) or Refusal(message, at, supported)
        nodes = self._nodes(args, f"{at.path}.args", level)
        return Operation(op if entry is None else entry.name, nodes, at)

    def _interval(self, value: Mapping[str, Json], at: SourceRange, level: int) -> Node:
        bounds = value["interval"]
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise Refusal("an interval has two bounds", at)
        start, end = (
            self._bound(bound, f"{at.path}.interval[{i}]", level) for i, bound in enumerate(bounds)
        )
        return Interval(start, end, at)

    def _bound(self, value: Json, path: str, level: int) -> Node | None:
        if isinstance(value, str) and not isinstance(value, Number):
            at = SourceRange(path)
            return literals.read_instant(cast(str, self._text(value, at).value), at)
        bound = self.node(value, path, level + 1)
        if isinstance(bound, Instant):
            raise Refusal("a bound is the text of a date or timestamp alone", bound.at)
        return bound

    def _geometry(self, value: Mapping[str, Json], at: SourceRange, level: int) -> Geometry:
        shape = value["type"]
        if shape not in _GEOMETRIES:
            raise Refusal(f"there is no geometry {str(shape)[:64]!r}", at, _GEOMETRIES)
        if shape != "GeometryCollection":
            if "coordinates" not in value:
                raise Refusal(f"a {shape} has `coordinates`", at, ("coordinates",))
            coordinates = self._coordinates(value["coordinates"], at)
            return make_geometry(cast(Shape, shape), coordinates, at)
        parts = value.get("geometries")
        if not isinstance(parts, list):
            raise Refusal("a GeometryCollection has a list of `geometries`", at, ("geometries",))
        return make_collection(self._nodes(parts, f"{at.path}.geometries", level), at)

    def _nodes(self, values: Sequence[Json], path: str, level: int) -> tuple[Node, ...]:
        return tuple(self.node(item, f"{path}[{i}]", level + 1) for i, item in enumerate(values))

    def _coordinates(self, value: Json, at: SourceRange, levels: int = DEEPEST) -> Raw:
        if not isinstance(value, list) or levels == 0:
            raise Refusal("coordinates are lists of numbers, as in GeoJSON", at)
        self._spend(sum(map(_is_number, value)), at)
        return tuple(
            _read_number(part, at) if _is_number(part) else self._coordinates(part, at, levels - 1)
            for part in value
        )

    def _plain(self, value: Mapping[str, Json], at: SourceRange, member: str) -> str:
        text = value[member]
        if not isinstance(text, str) or isinstance(text, Number):
            raise Refusal(f"`{member}` is a text", SourceRange(f"{at.path}.{member}"))
        return cast(str, self._text(text, at).value)

    def _text(self, value: str, at: SourceRange) -> Scalar:
        text = literals.text_of(str(value), at)
        self._spend(len(value.encode()), at)
        return text

    def _spend(self, size: int, at: SourceRange) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise Refusal(f"what a filter is made of has at most {MOST_BYTES:,} bytes", at)

    def _count(self, at: SourceRange, level: int) -> None:
        self.nodes -= 1
        if self.nodes < 0:
            raise Refusal(f"a filter has at most {MOST_NODES:,} operations, names and values", at)
        if level > MOST_DEPTH:
            raise Refusal(f"a filter is nested at most {MOST_DEPTH} levels deep", at)


_Read = Callable[[_Reading, Mapping[str, Any], SourceRange, int], Node]
_OBJECTS: Final[Mapping[str, tuple[_Read, tuple[str, ...]]]] = {
    "op": (_Reading._operation, ("args",)),
    "property": (lambda of, v, at, _: Named(of._plain(v, at, "property"), False, at), ()),
    "date": (lambda of, v, at, _: literals.read_date(of._plain(v, at, "date"), at), ()),
    "timestamp": (lambda of, v, at, _: read_timestamp(of._plain(v, at, "timestamp"), at), ()),
    "interval": (_Reading._interval, ()),
    "type": (_Reading._geometry, ("coordinates", "geometries", "bbox")),
    "bbox": (lambda of, v, at, _: make_geometry("BBox", of._coordinates(v["bbox"], at), at), ()),
}
"""For the member that identifies an object: its reader, and the other members allowed."""


def _refuse_others(value: Mapping[str, Json], members: set[str], at: SourceRange) -> None:
    others = sorted(set(value) - members)
    if others:
        raise Refusal(f"nothing is known of {others[0][:64]!r} here", at, sorted(members))


def _is_number(value: Json) -> bool:
    return isinstance(value, Number | int | float | Decimal) and not isinstance(value, bool)


def _read_number(value: Any, at: SourceRange) -> Decimal:
    return literals.number(repr(value) if isinstance(value, float) else str(value), at)
