"""Writes the tree as CQL2-Text, with no more brackets than it needs."""

from decimal import Decimal
from typing import Final

from . import literals
from .bare_names import is_bare
from .operations import OPERATIONS
from .suggestions import quoted
from .tree import (
    Coordinates,
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)
from .write_json import refuse_deep

# The precedence of a node, in the order of the grammar.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _POWER, _FACTOR = range(8)
_TIGHT: Final = {
    **{"or": _OR, "and": _AND, "not": _NOT, "+": _SUM, "-": _SUM, "^": _POWER},
    **dict.fromkeys(("*", "/", "%", "div"), _PRODUCT),
    **dict.fromkeys(("=", "<>", "<", ">", "<=", ">=", "like", "between", "in"), _PREDICATE),
    "isNull": _PREDICATE,
}
_LEFT: Final = {_SUM, _PRODUCT}
"""Levels that associate to the left: `a - b - c` is `(a - b) - c`."""
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
            written = f"INTERVAL({_bound(start)}, {_bound(end)})"
        case Geometry():
            written = _geometry(node)
        case Listed(items):
            written = f"({', '.join(map(_text, items))})"
        case Operation(op) if op in _TIGHT:
            written = _operator(node)
        case Operation(op, args):
            entry = OPERATIONS.get(op)
            written = f"{op if entry is None else entry.text}({', '.join(map(_text, args))})"
    return written


def _word_of(node: Instant) -> str:
    return "TIMESTAMP" if "T" in literals.spelled(node) else "DATE"


def _operator(node: Operation) -> str:
    args, tight = node.args, _TIGHT[node.op]
    match node.op:
        case "not":
            return _negation(args[0])
        case "like" | "between" | "in" | "isNull":
            return _predicate(node, "")
        case "and" | "or":
            return f" {node.op.upper()} ".join(_within(arg, tight + 1) for arg in args)
    left = _within(args[0], tight if tight in _LEFT else tight + 1)
    return f"{left} {node.op} {_within(args[1], tight + 1)}"


def _negation(of: Node) -> str:
    if isinstance(of, Operation) and of.op in _NEGATED:
        return _predicate(of, "NOT ")
    return f"NOT {_within(of, _NOT)}"


def _predicate(node: Operation, negated: str) -> str:
    first, *rest = (_within(arg, _SUM) for arg in node.args)
    match node.op:
        case "isNull":
            return f"{first} IS {negated}NULL"
        case "between":
            return f"{first} {negated}BETWEEN {rest[0]} AND {rest[1]}"
        case _:
            return f"{first} {negated}{node.op.upper()} {rest[0]}"


def _within(node: Node, tight: int) -> str:
    """Return the text of an operand, in brackets if its precedence is lower than `tight`."""
    own = _TIGHT.get(node.op, _FACTOR) if isinstance(node, Operation) else _FACTOR
    if isinstance(node, Operation) and node.op == "not" and _is_infix_negation(node):
        own = _PREDICATE
    written = _text(node)
    return written if own >= tight else f"({written})"


def _is_infix_negation(node: Operation) -> bool:
    of = node.args[0]
    return isinstance(of, Operation) and of.op in _NEGATED


def _scalar(value: str | Decimal | bool) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return str(value) if isinstance(value, Decimal) else literals.escaped(value)


def _bound(bound: Node | None) -> str:
    if bound is None:
        return "'..'"
    return f"'{literals.spelled(bound)}'" if isinstance(bound, Instant) else _text(bound)


def _geometry(node: Geometry) -> str:
    name = node.shape.upper()
    if node.shape == "BBox":
        return f"{name}({', '.join(map(str, node.coordinates))})"
    if node.shape == "GeometryCollection":
        return f"{name}({', '.join(map(_geometry, node.geometries))})"
    inside = _coordinates(node.coordinates)
    if node.shape == "Point":
        inside = f"({inside})"
    if node.shape == "MultiPoint":
        inside = (
            f"({', '.join(f'({_coordinates(position)})' for position in _lists(node.coordinates))})"
        )
    return f"{name}{' Z ' if _has_heights(node.coordinates) else ''}{inside}"


def _coordinates(part: Coordinates) -> str:
    if isinstance(part[0], Decimal):
        return " ".join(map(str, part))
    return f"({', '.join(_coordinates(inner) for inner in _lists(part))})"


def _lists(part: Coordinates) -> list[Coordinates]:
    return [inner for inner in part if not isinstance(inner, Decimal)]


def _has_heights(part: Coordinates) -> bool:
    while not isinstance(part[0], Decimal):
        part = part[0]
    return len(part) == 3
