"""Checks a tree against the table of operations and the caps."""

from collections.abc import Iterator
from decimal import Decimal

from inference_store.inference.nearest import describe_known

from . import caps
from .operations import ACCEPTS, OPERATIONS, Entry, Kind, Takes
from .refusal import Refusal
from .suggestions import function_meant, meant_by
from .tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)

_UNKEPT_SHAPES = frozenset({"LineString", "MultiLineString"})
_KINDS: dict[type, Kind] = {
    bool: "truth",
    str: "text",
    Decimal: "number",
    Instant: "instant",
    Interval: "interval",
    Geometry: "geometry",
    Listed: "array",
    Named: "unknown",
}
_WORDS: dict[Takes, str] = {
    "truth": "a condition",
    "number": "a number",
    "text": "a text",
    "pattern": "a pattern: a text in single quotes, or CASEI or ACCENTI of one",
    "scalar": "one value",
    "ordered": "a number, text or time",
    "time": "a time: a name, DATE('…'), TIMESTAMP('…') or INTERVAL('…', '…')",
    "geometry": "a geometry",
    "array": "an array: a name, or values in brackets",
    "list": "a list",
    "name": "a name",
    "any": "a value",
}


def verify(root: Node, *, takes: Takes = "truth", whole_standard: bool = False) -> None:
    """Raise Refusal if a node is over a cap, misplaced, unknown or of an unsupported class.

    `takes`: the allowed kind of the whole. With `whole_standard`, unsupported operations and
    unknown functions pass. Never recurses.
    """
    measure(root, depth=caps.DEPTH, nodes=caps.NODES)
    if not _may_be(root, takes):
        what = "a filter is a condition" if takes == "truth" else f"{_WORDS[takes]} is expected"
        raise Refusal(f"{what}, and this is {describe_kind(root)}", root.at)
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        _verify(node, whole_standard)
        waiting.extend(inside(node))


def measure(root: Node, *, depth: int, nodes: int | None = None) -> None:
    """Raise Refusal if a tree is too deep or too large."""
    count = 0
    waiting = [(root, 1)]
    while waiting:
        node, level = waiting.pop()
        count += 1
        if level > depth:
            raise Refusal(f"a filter is nested at most {depth} levels deep", node.at)
        if nodes is not None and count > nodes:
            raise Refusal(f"a filter has at most {nodes:,} operations, names and values", root.at)
        waiting.extend((child, level + 1) for child in inside(node))


def inside(node: Node) -> Iterator[Node]:
    """Yield the children of a node."""
    match node:
        case Operation(args=parts) | Listed(items=parts) | Geometry(geometries=parts):
            yield from parts
        case Interval(start, end):
            yield from (bound for bound in (start, end) if bound is not None)


def kind_of(node: Node) -> Kind:
    """Return the kind of a node by its form."""
    if isinstance(node, Operation):
        entry = OPERATIONS.get(node.op)
        return "unknown" if entry is None else entry.gives
    return _KINDS[type(node.value) if isinstance(node, Scalar) else type(node)]


def describe_kind(node: Node) -> str:
    """Describe a node in words."""
    kind = kind_of(node)
    return {"truth": "a condition", "instant": "a time", "unknown": "a name"}.get(kind, _a(kind))


def _verify(node: Node, whole_standard: bool) -> None:
    match node:
        case Operation(op) if op in OPERATIONS:
            _verify_operation(node, OPERATIONS[op], whole_standard)
        case Operation() if not whole_standard:
            raise _no_function(node)
        case Listed(items) if len(items) > caps.ITEMS:
            raise Refusal(f"an array has at most {caps.ITEMS:,} items", node.at)
        case Interval(start, end):
            for bound in (start, end):
                if bound is not None and kind_of(bound) not in {"instant", "unknown"}:
                    message = f"a bound of an interval is no {kind_of(bound)}"
                    raise Refusal(message, bound.at, list(filter(None, [meant_by(bound)])))
        case Geometry(shape) if shape in _UNKEPT_SHAPES and not whole_standard:
            raise Refusal(
                f"{shape.upper()} is not kept", node.at, conformance="basic-spatial-functions-plus"
            )


def _verify_operation(node: Operation, entry: Entry, whole_standard: bool) -> None:
    if not entry.is_supported and not whole_standard:
        raise Refusal(f"{entry.text} is not kept", node.at, conformance=entry.conformance)
    count = len(node.args)
    if count < entry.least or (entry.most is not None and count > entry.most):
        raise Refusal(f"{entry.text} takes {_counted(entry)}, not {count}", node.at)
    for index, arg in enumerate(node.args):
        takes = entry.takes_at(index)
        if not _may_be(arg, takes):
            raise _misplaced(entry, arg, takes)
        if takes == "list":
            _verify_list(arg)


def _verify_list(arg: Node) -> None:
    for item in inside(arg):
        if not _may_be(item, "scalar"):
            raise Refusal(f"a list holds single values, and this is {describe_kind(item)}", item.at)


def _may_be(node: Node, takes: Takes) -> bool:
    match takes:
        case "name":
            return isinstance(node, Named)
        case "list":
            return isinstance(node, Listed) and len(node.items) > 0
        case "pattern":
            return _is_pattern(node)
    kind = kind_of(node)
    return kind == "unknown" or kind in ACCEPTS[takes]


def _is_pattern(node: Node) -> bool:
    while isinstance(node, Operation) and node.op in {"casei", "accenti"} and len(node.args) == 1:
        node = node.args[0]
    return isinstance(node, Scalar) and isinstance(node.value, str)


def _misplaced(entry: Entry, arg: Node, takes: Takes) -> Refusal:
    suggestions: tuple[str, ...] = ()
    if isinstance(arg, Listed) and entry.name == "=":
        suggestions = ("A_EQUALS", "IN")
    return Refusal(
        f"{entry.text} takes {_WORDS[takes]} here, and this is {describe_kind(arg)}",
        arg.at,
        suggestions,
    )


def _no_function(node: Operation) -> Refusal:
    functions = [
        entry for entry in OPERATIONS.values() if entry.style == "call" and entry.is_supported
    ]
    names = [entry.text for entry in sorted(functions, key=lambda entry: not entry.own)]
    near = function_meant(node.op)
    message = f"there is no function {node.op}; {describe_known(near, names)}"
    return Refusal(message, node.at, tuple(dict.fromkeys((*near, *names))))


def _counted(entry: Entry) -> str:
    words = ("no arguments", "one argument", "two arguments", "three arguments")
    if entry.most is None:
        return "two or more arguments"
    if entry.least < entry.most:
        return f"{words[entry.least]} or {words[entry.most].split()[0]}"
    return words[entry.most]


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aiu" else f"a {kind}"
