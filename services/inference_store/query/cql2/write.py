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
        case Geometry():
            written = _json_geometry(node)
        case tree.Listed(items):
            written = [_json(item) for item in items]
        case Operation(op, args):
            written = {"op": op, "args": [_json(arg) for arg in args]}
    return written


def _json_bound(bound: Node | None) -> Json:
    if bound is None:
        return ".."
    return literals.spelled(bound) if isinstance(bound, Instant) else _json(bound)


def _json_geometry(node: Geometry) -> Json:
    if node.shape == "BBox":
        return {"bbox": _json_coordinates(node.coordinates)}
    if node.shape == "GeometryCollection":
        return {
            "type": node.shape,
            "geometries": [_json_geometry(part) for part in node.geometries],
        }
    return {"type": node.shape, "coordinates": _json_coordinates(node.coordinates)}


def _json_coordinates(part: tree.Coordinates) -> list[Json]:
    return [
        _json_number(coordinate)
        if isinstance(coordinate, Decimal)
        else _json_coordinates(coordinate)
        for coordinate in part
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
        case Operation(op) if _tight(node) < FACTOR:
            written = _operator(node)
        case Operation(op, args):
            entry = OPERATIONS.get(op)
            written = f"{op if entry is None else entry.text}({', '.join(map(_text, args))})"
    return written


def _word_of(node: Instant) -> str:
    return "TIMESTAMP" if "T" in literals.spelled(node) else "DATE"


def _operator(node: Operation) -> str:
    args, tight = node.args, _tight(node)
    match node.op:
        case "not":
            return _negation(args[0])
        case "like" | "between" | "in" | "isNull":
            return _predicate(node, "")
        case "and" | "or":
            return f" {node.op.upper()} ".join(_within(arg, tight + 1) for arg in args)
    left = _within(args[0], tight if tight in LEFT else tight + 1)
    return f"{left} {node.op} {_within(args[1], tight + 1)}"


def _tight(node: Node) -> int:
    entry = OPERATIONS.get(node.op) if isinstance(node, Operation) else None
    return FACTOR if entry is None or entry.tight is None else entry.tight


def _negation(of: Node) -> str:
    if isinstance(of, Operation) and of.op in _NEGATED:
        return _predicate(of, "NOT ")
    return f"NOT {_within(of, _tight(Operation('not', ())))}"


def _predicate(node: Operation, negated: str) -> str:
    first, *rest = (_within(arg, SUM) for arg in node.args)
    match node.op:
        case "isNull":
            return f"{first} IS {negated}NULL"
        case "between":
            return f"{first} {negated}BETWEEN {rest[0]} AND {rest[1]}"
        case _:
            return f"{first} {negated}{node.op.upper()} {rest[0]}"


def _within(node: Node, tight: int) -> str:
    match node:
        case Operation("not", (Operation(op),)) if op in _NEGATED:
            own = PREDICATE  # `a NOT IN (1)`
        case _:
            own = _tight(node)
    written = _text(node)
    return written if own >= tight else f"({written})"


def _scalar(value: str | Decimal | bool) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, Decimal) else literals.escaped(value)


def _text_bound(bound: Node | None) -> str:
    if bound is None:
        return "'..'"
    return f"'{literals.spelled(bound)}'" if isinstance(bound, Instant) else _text(bound)


def _text_geometry(node: Geometry) -> str:
    name = node.shape.upper()
    if node.shape == "BBox":
        return f"{name}({', '.join(map(str, node.coordinates))})"
    if node.shape == "GeometryCollection":
        return f"{name}({', '.join(map(_text_geometry, node.geometries))})"
    inside = _text_coordinates(node.coordinates)
    if node.shape == "Point":
        inside = f"({inside})"
    if node.shape == "MultiPoint":
        points = (f"({_text_coordinates(point)})" for point in _nested(node.coordinates))
        inside = f"({', '.join(points)})"
    return f"{name}{' Z ' if _has_heights(node.coordinates) else ''}{inside}"


def _text_coordinates(part: tree.Coordinates) -> str:
    if isinstance(part[0], Decimal):
        return " ".join(map(str, part))
    return f"({', '.join(_text_coordinates(inner) for inner in _nested(part))})"


def _nested(part: tree.Coordinates) -> list[tree.Coordinates]:
    return [inner for inner in part if not isinstance(inner, Decimal)]


def _has_heights(part: tree.Coordinates) -> bool:
    while not isinstance(part[0], Decimal):
        part = part[0]
    return len(part) == 3
