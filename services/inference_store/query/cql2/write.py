"""Writes the tree as CQL2-JSON, and as CQL2-Text with no more brackets than it needs."""

import re
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final

from inference_store.inference.json_text import Json, Number

from . import literals, tree
from .operations import FACTOR, KEYWORDS, LEFT, OPERATIONS, PREDICATE, SUM
from .tree import Geometry, Instant, Interval, Named, Node, Operation, Scalar
from .verify import measure, quoted

_BEFORE_BRACKETS: Final = re.compile(
    "date|timestamp|interval|bbox|(multi)?(point|linestring|polygon)|geometrycollection"
    "|casei|accenti",
    re.IGNORECASE,
)


def is_bare(name: str) -> bool:
    """Check whether a name needs no quotes by the standard: it is an identifier and no keyword."""
    reserved = name.lower() in KEYWORDS or _BEFORE_BRACKETS.fullmatch(name)
    return not reserved and _identifier().fullmatch(name) is not None


@cache
def _identifier() -> re.Pattern[str]:
    grammar = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    return re.compile(re.findall(r"^NAME: /(.+)/$", grammar, re.MULTILINE)[0])


WRITTEN_DEPTH: Final = 2 * tree.MOST_DEPTH
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
    except tree.Refusal as refused:
        raise tree.error_of(refused, None) from None


def _json(node: Node) -> Json:
    match node:
        case Scalar(value):
            written: Json = _json_number(value) if isinstance(value, Decimal) else value
        case Named(name):
            written = {"property": name}
        case Instant():
            written = {_word_of(node).lower(): literals.spelled(node)}
        case Interval(start, end):
            written = {"interval": [_json_bound(start), _json_bound(end)]}
        case Geometry("BBox", coordinates):
            written = {"bbox": _json_coordinates(coordinates)}
        case Geometry("GeometryCollection" as shape, _, parts):
            written = {"type": shape, "geometries": [_json(part) for part in parts]}
        case Geometry(shape, coordinates):
            written = {"type": shape, "coordinates": _json_coordinates(coordinates)}
        case tree.Listed(items):
            written = [_json(item) for item in items]
        case Operation(op, args):
            written = {"op": op, "args": [_json(arg) for arg in args]}
    return written


def _json_bound(bound: Node | None) -> Json:
    if bound is None:
        return ".."
    return literals.spelled(bound) if isinstance(bound, Instant) else _json(bound)


def _json_coordinates(part: tree.Coordinates) -> list[Json]:
    return [
        _json_number(inner) if isinstance(inner, Decimal) else _json_coordinates(inner)
        for inner in part
    ]


def _json_number(value: Decimal) -> Json:
    """Return Python's own number if it is exact, so that any JSON writer writes it correctly."""
    exponent = value.as_tuple().exponent
    if exponent == 0 and value.adjusted() < 18 and not (value.is_zero() and value.is_signed()):
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else Number(str(value))


_NEGATED: Final = frozenset({"like", "between", "in", "isNull"})


def to_text(node: Node) -> str:
    """Return the tree as text, which `parse_text` parses to the same tree.

    Raises InvalidFilter for a tree deeper than WRITTEN_DEPTH.
    """
    refuse_deep(node)
    return _text(node)


def _text(node: Node) -> str:
    match node:
        case Scalar(value):
            written = _scalar(value)
        case Named(name, was_quoted):
            written = name if is_bare(name) and not was_quoted else quoted(name)
        case Instant():
            written = f"{_word_of(node)}('{literals.spelled(node)}')"
        case Interval(start, end):
            written = f"INTERVAL({_text_bound(start)}, {_text_bound(end)})"
        case Geometry():
            written = _text_geometry(node)
        case tree.Listed(items):
            written = f"({', '.join(map(_text, items))})"
        case Operation() if _tight(node) < FACTOR:
            written = _operator(node)
        case Operation(op, args):
            entry = OPERATIONS.get(op)
            written = f"{op if entry is None else entry.text}({', '.join(map(_text, args))})"
    return written


def _word_of(node: Instant) -> str:
    return "TIMESTAMP" if "T" in literals.spelled(node) else "DATE"


def _operator(node: Operation) -> str:
    tight = _tight(node)
    match node:
        case Operation("not", (Operation(op) as of,)) if op in _NEGATED:
            written = _predicate(of, "NOT ")
        case Operation("not", (of,)):
            written = f"NOT {_within(of, tight)}"
        case Operation(op) if op in _NEGATED:
            written = _predicate(node, "")
        case Operation("and" | "or" as op, args):
            written = f" {op.upper()} ".join(_within(arg, tight + 1) for arg in args)
        case Operation(op, (left, right)):
            first = _within(left, tight if tight in LEFT else tight + 1)
            written = f"{first} {op} {_within(right, tight + 1)}"
    return written


def _tight(node: Node) -> int:
    match node:
        case Operation("not", (Operation(op),)) if op in _NEGATED:
            return PREDICATE  # `a NOT IN (1)`
        case Operation(op):
            entry = OPERATIONS.get(op)
            return FACTOR if entry is None or entry.tight is None else entry.tight
    return FACTOR


def _predicate(node: Operation, negated: str) -> str:
    first, *rest = (_within(arg, SUM) for arg in node.args)
    match node.op:
        case "isNull":
            return f"{first} IS {negated}NULL"
        case "between":
            return f"{first} {negated}BETWEEN {rest[0]} AND {rest[1]}"
    return f"{first} {negated}{node.op.upper()} {rest[0]}"


def _within(node: Node, tight: int) -> str:
    return _text(node) if _tight(node) >= tight else f"({_text(node)})"


def _scalar(value: str | Decimal | bool) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, Decimal) else literals.escaped(value)


def _text_bound(bound: Node | None) -> str:
    if bound is None:
        return "'..'"
    return f"'{literals.spelled(bound)}'" if isinstance(bound, Instant) else _text(bound)


def _text_geometry(node: Geometry) -> str:
    name, coordinates = node.shape.upper(), node.coordinates
    if node.shape == "BBox":
        return f"{name}({', '.join(map(str, coordinates))})"
    if node.shape == "GeometryCollection":
        return f"{name}({', '.join(map(_text_geometry, node.geometries))})"
    inside = _text_coordinates(coordinates)
    if node.shape == "Point":
        inside = f"({inside})"
    if node.shape == "MultiPoint":
        inside = f"({', '.join(f'({_text_coordinates(point)})' for point in coordinates)})"
    while not isinstance(coordinates[0], Decimal):
        coordinates = coordinates[0]
    return f"{name}{' Z ' if len(coordinates) == 3 else ''}{inside}"


def _text_coordinates(part: "tree.Coordinates | Decimal") -> str:
    if isinstance(part, Decimal):
        return str(part)
    inner = map(_text_coordinates, part)
    return " ".join(inner) if isinstance(part[0], Decimal) else f"({', '.join(inner)})"
