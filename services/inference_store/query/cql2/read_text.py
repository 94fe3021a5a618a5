"""Parses CQL2-Text to the tree.

`Build` makes the tree from the parts of `grammar.lark` while it reads, so none recurses. The names
of its methods are those of the grammar. A part is a node, a token or a bracketed node.
"""

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from inference_store.inference.json_text import storable

from . import literals
from .literals import DEEPEST, LEVELS, Raw, make_collection, make_geometry
from .operations import KEYWORDS, Entry, Takes, entry_of
from .relative import NO_CLOCK, Clock, resolve
from .tree import (
    MOST_BYTES,
    MOST_TOKENS,
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

_TOKEN: Final = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'?|"[^"]*"?|[\w.:]+|[^\s\w]""", re.DOTALL)
_VALUES: Final = frozenset({"NAME", "QUOTED", "TEXT", "NUMBER", "TRUE", "GEOMETRY"})
_EXPECTED: Final = {
    "COMPARISON": "a comparison (= <> < <= > >=)",
    "LIKE": "LIKE, BETWEEN, IN",
    **{"IS": "IS NULL", "NULL": "NULL", "AND": "AND", "OR": "OR"},
    "SIGN": "an operator (+ - * / % div ^)",
    **{"NAME": "a name", "TEXT": "a text", "NUMBER": "a number"},
    **{"OPEN": "(", "CLOSE": ")", "COMMA": ",", "$END": "the end"},
}
"""Terminals of the grammar in words: each stands for those that are accepted with it, too."""


def parse_text(
    text: str, *, path: str = "filter", clock: Clock = NO_CLOCK, takes: Takes = "truth"
) -> Node:
    """Return the tree of a filter written as text, or of another expression: see `takes`.

    `path`: the field that contains the text. Raises InvalidFilter, and NotKept for a feature of an
    unsupported conformance class.
    """
    before = PATH.set(path)
    try:
        _refuse_unreadable(text)
        tree = resolve(_tree(text), clock)
        verify(tree, takes=takes)
    except Refusal as refused:
        raise error_of(refused, text) from None
    finally:
        PATH.reset(before)
    return tree


def _refuse_unreadable(text: str) -> None:
    message = None
    if not storable(text):
        message = "a filter holds neither NUL nor half a surrogate pair"
    elif len(text.encode()) > MOST_BYTES:
        message = f"a filter has at most {MOST_BYTES:,} bytes"
    elif sum(1 for _ in _TOKEN.finditer(text)) > MOST_TOKENS:
        message = f"a filter has at most {MOST_TOKENS:,} words and signs"
    elif not text or text.isspace():
        message = "the filter is empty: leave it out, or write a condition"
    if message is not None:
        raise Refusal(message, SourceRange(PATH.get()))


def _tree(text: str) -> Node:
    try:
        tree: Node = parser().parse(text)  # type: ignore[assignment]  # Build transforms it to nodes
    except UnexpectedCharacters as wrong:
        raise _unexpected_character(text, wrong.pos_in_stream or 0) from None
    except UnexpectedToken as wrong:
        raise _unexpected_token(text, wrong) from None
    return tree


def _unexpected_character(text: str, offset: int) -> Refusal:
    at = SourceRange(PATH.get(), offset, offset + 1)
    quote = text[offset]
    if quote in "'\"":
        what = "text" if quote == "'" else "name"
        message = f"this {what} has no closing quote; a quote inside it is written twice"
        return Refusal(message, SourceRange(at.path, offset, len(text.rstrip())), (quote * 2,))
    return slip_at(text, at) or Refusal(f"{quote!r} means nothing here", at)


def _unexpected_token(text: str, wrong: UnexpectedToken) -> Refusal:
    token, path = wrong.token, PATH.get()
    accepted = set(wrong.accepts or wrong.expected)
    # after a value a bracket makes sense only if it was a name
    words = [word for kind, word in _EXPECTED.items() if kind in accepted]
    words = [word for word in words if word != "(" or "COMPARISON" not in accepted]
    words = words or sorted(kind.lower() for kind in accepted)
    expected = ", ".join(words[:-1]) + (" or " if words[:-1] else "") + words[-1]
    if accepted >= _VALUES:
        expected = "a name, a number, a 'text' or another value"
    if token.type == "$END":
        end, what = len(text.rstrip()), "filter" if "filter" in path else path
        message = f"the {what} ends too early: expected {expected}"
        return Refusal(message, SourceRange(path, end, end + 1))
    at = SourceRange(path, token.start_pos, token.end_pos)
    if text[: at.start].endswith("'") and token.type in {"NAME", "NUMBER", "TEXT"}:
        message = "the text before ends here; a quote inside a text is written twice"
        return Refusal(message, at, ("''",))
    written = repr(str(token) if len(token) <= 40 else token[:39] + "…")
    message = f"{written} is unexpected here: expected {expected}"
    return slip_at(text, at) or Refusal(message, at)


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
_SHAPES: Final = {shape.upper(): shape for shape in (*LEVELS, "GeometryCollection")}


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
        instant = read(literals.unescaped(str(parts[2])), _from(parts[2], parts[2]))
        return Instant(instant.value, _from(parts[0], parts[-1]))

    def bound(self, parts: list[Part]) -> Instant | None:
        return literals.read_instant(literals.unescaped(str(parts[0])), _from(parts[0], parts[0]))

    def interval(self, parts: list[Part]) -> Interval:
        start, end = cast(Node | None, parts[2]), cast(Node | None, parts[4])
        return Interval(start, end, _from(parts[0], parts[-1]))

    def geometry(self, parts: list[Part]) -> Geometry:
        shape = cast(Shape, _SHAPES[str(parts[0]).upper().split()[0]])
        nested, at = cast(Nested, parts[1]), _from(parts[0], parts[1])
        if shape == "GeometryCollection":
            return make_collection(nested.parts, at)
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
    if shape == "MultiPoint":  # (1 2, 3 4) and ((1 2), (3 4)) are both written
        return tuple(_without_brackets(cast(Raw, part)) for part in raw)
    return _without_brackets(raw) if shape == "Point" else raw


def _without_brackets(raw: Raw) -> Raw:
    return raw[0] if len(raw) == 1 and isinstance(raw[0], tuple) else raw


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
