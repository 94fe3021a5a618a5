"""The parser: it builds the tree from the parts of `grammar.lark` while it reads, so none recurses.

The names of methods are those of the grammar. A part is a node, a token or a bracketed node.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias, cast, get_args

from lark import Lark, Token, Transformer

from . import literals
from .literals import DEEPEST, Raw, make_collection, make_geometry
from .operations import KEYWORDS, Entry, entry_of
from .tree import (
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
)

PATH: Final = ContextVar("PATH", default="filter")
"""The field of the request that contains the text."""


@dataclass(frozen=True, slots=True)
class Group:
    """A node in brackets; an array function reads it as an array with one item."""

    of: "Node | Group"
    at: SourceRange


@dataclass(frozen=True, slots=True)
class Nested:
    """Brackets inside a geometry."""

    parts: "tuple[tuple[Decimal, ...] | Nested | Geometry, ...]"
    at: SourceRange


Part: TypeAlias = Token | Node | Group | Nested
_SHAPES: Final[dict[str, Shape]] = {shape.upper(): shape for shape in get_args(Shape)}


def _from(first: Part, last: Part) -> SourceRange:
    start = first.start_pos if isinstance(first, Token) else first.at.start
    end = last.end_pos if isinstance(last, Token) else last.at.end
    return SourceRange(PATH.get(), start, end)


def _bare(part: Part) -> Node:
    while isinstance(part, Group):
        part = part.of
    return cast(Node, part)


def _nodes(parts: list[Part]) -> tuple[Node, ...]:
    return tuple(_bare(part) for part in parts if not isinstance(part, Token | None))


def _array_of(part: Part) -> Node:
    """Return a bracketed node as an array with one item, for each pair of brackets."""
    around: list[SourceRange] = []
    while isinstance(part, Group):
        around.append(part.at)
        part = part.of
    array = cast(Node, part)
    for at in reversed(around):
        array = Listed((array,), at)
    return array


_Make: TypeAlias = Callable[["Build", list[Part]], Operation]


def _operation(op: str) -> _Make:
    return lambda _, parts: Operation(op, _nodes(parts), _from(parts[0], parts[-1]))


def _not(make: _Make) -> _Make:
    return lambda build, parts: Operation("not", (make(build, parts),), _from(parts[0], parts[-1]))


class Build(Transformer[Token, Node]):
    """The tree, from the leaves up."""

    def start(self, parts: list[Part]) -> Node:
        return _bare(parts[0])

    disjunction, conjunction = _operation("or"), _operation("and")
    like, between, missing = map(_operation, ("like", "between", "isNull"))

    def negation(self, parts: list[Part]) -> Operation:
        return Operation("not", (_bare(parts[1]),), _from(parts[0], parts[-1]))

    def binary(self, parts: list[Part]) -> Operation:
        op = str(parts[1]).lower()
        return Operation(op, _nodes(parts), _from(parts[0], parts[-1]))

    def among(self, parts: list[Part]) -> Operation:
        brackets = next(i for i, part in enumerate(parts) if getattr(part, "type", "") == "OPEN")
        items = Listed(_nodes(parts[brackets:]), _from(parts[brackets], parts[-1]))
        return Operation("in", (_bare(parts[0]), items), _from(parts[0], parts[-1]))

    unlike, outside, none_of, present = map(_not, (like, between, among, missing))

    def signed(self, parts: list[Part]) -> Node:
        """Return a number for `-5`, and `-1 * x` for `-x`: the standard's JSON has no sign."""
        sign, of, at = str(parts[0]), _bare(parts[1]), _from(parts[0], parts[1])
        if isinstance(of, Scalar) and isinstance(of.value, Decimal):
            return Scalar(of.value.copy_negate() if sign == "-" else of.value, at)
        if sign == "+":
            raise Refusal("a + goes before a number or between two", at)
        return Operation("*", (Scalar(Decimal(-1), at), of), at)

    def group(self, parts: list[Part]) -> Group:
        return Group(cast(Node | Group, parts[1]), _from(parts[0], parts[-1]))

    def array(self, parts: list[Part]) -> Listed:
        items = [part for part in parts if not isinstance(part, Token)]
        return Listed(tuple(map(_array_of, items)), _from(parts[0], parts[-1]))

    def call(self, parts: list[Part]) -> Operation:
        name, at = str(parts[0]), _from(parts[0], parts[-1])
        entry = entry_of(name)
        if entry is None:
            return Operation(name, _nodes(parts), at)
        if entry.tight is not None:
            raise Refusal(f"{name} is not a function: write it as {entry.text}", at)
        return Operation(entry.name, _arguments(entry, parts), at)

    def number(self, parts: list[Part]) -> Scalar:
        at = _from(parts[0], parts[0])
        return Scalar(literals.number(str(parts[0]), at), at)

    def text(self, parts: list[Part]) -> Scalar:
        return literals.text_of(literals.unescaped(str(parts[0])), _from(parts[0], parts[0]))

    def truth(self, parts: list[Part]) -> Scalar:
        return Scalar(cast(Token, parts[0]).type == "TRUE", _from(parts[0], parts[0]))

    def name(self, parts: list[Part]) -> Named:
        return Named(str(parts[0]), False, _from(parts[0], parts[0]))

    def quoted(self, parts: list[Part]) -> Named:
        return Named(str(parts[0])[1:-1].replace('""', '"'), True, _from(parts[0], parts[0]))

    def instant(self, parts: list[Part]) -> Instant:
        is_date = cast(Token, parts[0]).type == "DATE"
        read = literals.read_date if is_date else literals.read_timestamp
        at = _from(parts[0], parts[-1])
        return Instant(read(literals.unescaped(str(parts[2])), _from(parts[2], parts[2])).value, at)

    def bound(self, parts: list[Part]) -> Instant | None:
        return literals.read_instant(literals.unescaped(str(parts[0])), _from(parts[0], parts[0]))

    def interval(self, parts: list[Part]) -> Interval:
        start, end = cast(Node | None, parts[2]), cast(Node | None, parts[4])
        return Interval(start, end, _from(parts[0], parts[-1]))

    def geometry(self, parts: list[Part]) -> Geometry:
        shape = _SHAPES[str(parts[0]).upper().split()[0]]
        nested, at = cast(Nested, parts[1]), _from(parts[0], parts[1])
        if shape == "GeometryCollection":
            inside = [part for part in nested.parts if isinstance(part, Geometry)]
            if len(inside) < len(nested.parts):
                raise Refusal("a GEOMETRYCOLLECTION holds geometries", at)
            return make_collection(inside, at)
        return make_geometry(shape, _as_json_has_it(shape, _plain(nested, at)), at)

    def box(self, parts: list[Part]) -> Geometry:
        numbers = tuple(cast(Decimal, part) for part in parts if not isinstance(part, Token))
        return make_geometry("BBox", numbers, _from(parts[0], parts[-1]))

    def nested(self, parts: list[Part]) -> Nested:
        inside = tuple(part for part in parts if not isinstance(part, Token))
        return Nested(cast("tuple[Nested, ...]", inside), _from(parts[0], parts[-1]))

    def position(self, parts: list[Decimal]) -> tuple[Decimal, ...]:
        return tuple(parts)

    def coordinate(self, parts: list[Token]) -> Decimal:
        number = literals.number(str(parts[-1]), _from(parts[0], parts[-1]))
        return number.copy_negate() if str(parts[0]) == "-" else number


def _arguments(entry: Entry, parts: list[Part]) -> tuple[Node, ...]:
    inside = [part for part in parts if not isinstance(part, Token | None)]
    return tuple(
        _array_of(part) if entry.takes_at(index) == "array" else _bare(part)
        for index, part in enumerate(inside)
    )


def _plain(nested: Nested, at: SourceRange, levels: int = DEEPEST) -> Raw:
    if levels == 0 or any(isinstance(part, Geometry) for part in nested.parts):
        raise Refusal("a geometry is written POLYGON((0 0, 1 0, 1 1, 0 0))", at)
    return tuple(
        _plain(part, at, levels - 1) if isinstance(part, Nested) else cast(Raw, part)
        for part in nested.parts
    )


def _as_json_has_it(shape: Shape, raw: Raw) -> Raw:
    """Remove the pair of brackets that text, but not GeoJSON, has around a point's position."""
    if shape == "Point":
        return cast(Raw, raw[0]) if len(raw) == 1 else raw
    if shape == "MultiPoint":  # (1 2, 3 4) and ((1 2), (3 4)) are both written
        return tuple(_position_in(cast(Raw, part)) for part in raw)
    return raw


def _position_in(part: Raw) -> Raw:
    inside = part[0]
    return inside if len(part) == 1 and isinstance(inside, tuple) else part


@cache
def parser() -> Lark:
    """Return the parser, which is built once. It never recurses, whatever it reads."""
    # The basic lexer, not the contextual one: a reserved word is reserved everywhere.
    return Lark(
        (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        transformer=Build(),
        keep_all_tokens=True,
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(token: Token) -> Token:
    kind = KEYWORDS.get(token.lower()) if token.isascii() else None
    return token if kind is None else token.update(type=kind)
