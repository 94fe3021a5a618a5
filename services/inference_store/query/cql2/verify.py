"""Checks a tree against the table of operations and the caps, and suggests what was meant."""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from inference_store.inference.nearest import describe_known, nearest

from . import tree
from .operations import ARGUMENTS, OPERATIONS, Entry, Kind, Takes
from .tree import Listed, Named, Node, Operation, Refusal, Scalar, SourceRange

_UNKEPT_SHAPES = frozenset({"LineString", "MultiLineString"})
_KINDS: dict[type, Kind] = {
    **{bool: "truth", str: "text", Decimal: "number", tree.Instant: "instant"},
    **{tree.Interval: "interval", tree.Geometry: "geometry", Listed: "array", Named: "unknown"},
}


def verify(root: Node, *, takes: Takes = "truth") -> None:
    """Raise Refusal if a node is over a cap, misplaced, unknown or of an unsupported class.

    `takes`: the allowed kind of the whole. Never recurses.
    """
    measure(root, depth=tree.MOST_DEPTH, nodes=tree.MOST_NODES)
    if not _may_be(root, takes):
        what = f"{ARGUMENTS[takes].words} is expected"
        what = "a filter is a condition" if takes == "truth" else what
        raise Refusal(f"{what}, and this is {describe_kind(root)}", root.at)
    for node in iterate(root):
        _verify(node)


def measure(root: Node, *, depth: int, nodes: int | None = None) -> None:
    """Raise Refusal if a tree is too deep or too large."""
    for count, (node, level) in enumerate(_with_levels(root), 1):
        if level > depth:
            raise Refusal(f"a filter is nested at most {depth} levels deep", node.at)
        if nodes is not None and count > nodes:
            raise Refusal(f"a filter has at most {nodes:,} operations, names and values", root.at)


def iterate(root: Node) -> Iterator[Node]:
    """Yield every node in the order of the filter."""
    return (node for node, _ in _with_levels(root))


def _with_levels(root: Node) -> Iterator[tuple[Node, int]]:
    waiting = [(root, 1)]
    while waiting:  # it never recurses
        node, level = waiting.pop()
        yield node, level
        waiting.extend((child, level + 1) for child in reversed([*tree.inside(node)]))


def kind_of(node: Node) -> Kind:
    """Return the kind of a node by its form."""
    if isinstance(node, Operation):
        entry = OPERATIONS.get(node.op)
        return "unknown" if entry is None else entry.gives
    return _KINDS[type(node.value) if isinstance(node, Scalar) else type(node)]


def describe_kind(node: Node) -> str:
    """Describe a node in words."""
    if node == Listed(()):
        return "an empty list"
    kind = kind_of(node)
    article = "an" if kind[0] in "aiu" else "a"
    words = {"truth": "a condition", "instant": "a time", "unknown": "a name"}
    return words.get(kind, f"{article} {kind}")


def _verify(node: Node) -> None:
    match node:
        case Operation(op) if op in OPERATIONS:
            _verify_operation(node, OPERATIONS[op])
        case Operation():
            raise _no_function(node)
        case Listed(items) if len(items) > tree.MOST_ITEMS:
            raise Refusal(f"an array has at most {tree.MOST_ITEMS:,} items", node.at)
        case tree.Interval(start, end):
            for bound in (start, end):
                if bound is not None and kind_of(bound) not in {"instant", "unknown"}:
                    message = f"a bound of an interval is no {kind_of(bound)}"
                    raise Refusal(message, bound.at, list(filter(None, [meant_by(bound)])))
        case tree.Geometry(shape) if shape in _UNKEPT_SHAPES:
            message = f"{shape.upper()} is not kept: use POINT, POLYGON or BBOX"
            raise Refusal(message, node.at, conformance="basic-spatial-functions-plus")


def _verify_operation(node: Operation, entry: Entry) -> None:
    if not entry.is_supported:
        instead = ": use S_INTERSECTS, S_WITHIN, S_DISJOINT or distance()"
        message = f"{entry.text} is not kept{instead if entry.text.startswith('S_') else ''}"
        raise Refusal(message, node.at, conformance=entry.conformance)
    count = len(node.args)
    if count < entry.least or (entry.most is not None and count > entry.most):
        raise Refusal(f"{entry.text} takes {_counted(entry)}, not {count}", node.at)
    for index, arg in enumerate(node.args):
        takes = entry.takes_at(index)
        if not _may_be(arg, takes):
            raise _misplaced(entry, arg, takes)
        for item in tree.inside(arg) if takes == "list" else ():
            if not _may_be(item, "scalar"):
                message = f"a list holds single values, and this is {describe_kind(item)}"
                raise Refusal(message, item.at)


def _may_be(node: Node, takes: Takes) -> bool:
    match takes:
        case "name":
            return isinstance(node, Named)
        case "list":
            return isinstance(node, Listed) and len(node.items) > 0
        case "pattern":
            return _is_pattern(node)
    kind = kind_of(node)
    return kind == "unknown" or kind in ARGUMENTS[takes].kinds


def _is_pattern(node: Node) -> bool:
    while isinstance(node, Operation) and node.op in {"casei", "accenti"} and len(node.args) == 1:
        node = node.args[0]
    return isinstance(node, Scalar) and isinstance(node.value, str)


def _misplaced(entry: Entry, arg: Node, takes: Takes) -> Refusal:
    suggestions = ("A_EQUALS", "IN") if isinstance(arg, Listed) and entry.name == "=" else ()
    message = f"{entry.text} takes {ARGUMENTS[takes].words} here, and this is {describe_kind(arg)}"
    return Refusal(message, arg.at, suggestions)


_MEASURES: Final = frozenset({"avg", "count", "max", "mean", "min", "sum"})


def _no_function(node: Operation) -> Refusal:
    if node.op.lower() in _MEASURES:
        message = f"there is no function {node.op}: it is a measure of POST …/aggregate"
        return Refusal(message, node.at)
    functions = [
        entry for entry in OPERATIONS.values() if entry.tight is None and entry.is_supported
    ]
    names = [entry.text for entry in sorted(functions, key=lambda entry: not entry.own)]
    near = nearest(node.op, names, limit=3)
    message = f"there is no function {node.op}; {describe_known(near, names)}"
    return Refusal(message, node.at, tuple(dict.fromkeys((*near, *names))))


def _counted(entry: Entry) -> str:
    words = ("no arguments", "one argument", "two arguments", "three arguments")
    if entry.most is None:
        return "two or more arguments"
    if entry.least < entry.most:
        return f"{words[entry.least]} or {words[entry.most].split()[0]}"
    return words[entry.most]


_WORD: Final = r"[^\s'\"(),=<>!+*/%^]"  # what people write into a name
_NAME: Final = re.compile(rf"(?={_WORD}*[^\W\d]){_WORD}+")  # with a letter
_A_TIME: Final = "TIMESTAMP('2026-11-01T10:00:00Z')"
_IN_QUOTES: Final = "write the name in double quotes: "
# Common spellings of other languages, at the place at which the parser stopped, and the CQL2 for
# them. The first that matches counts; each may begin a little before the place.
# fmt: off
_SLIPS: Final = tuple(
    (re.compile(written, re.IGNORECASE), message, meant)
    for written, message, meant in (
        (r"==", "equality is written =", "="),
        (r"!=", "inequality is written <>", "<>"),
        (r"&&?", "conditions are joined by AND", "AND"),
        (r"\|\|?", "conditions are joined by OR", "OR"),
        (r"!", "a condition is negated by NOT", "NOT"),
        (r"\bilike\b", "CASEI compares without case", "CASEI(name) LIKE CASEI('pattern%')"),
        (r"=\s*null\b", "use IS NULL to find a missing value", "IS NULL"),
        (r"<>\s*null\b", "use IS NULL to find a missing value", "IS NOT NULL"),
        (r"\bcontains\b", "use LIKE to find a part of a text", "LIKE '%part%'"),
        (r"`([^`\s]*)`?", rf'{_IN_QUOTES}"\1"', r'"\1"'),
        (r"\b(metadata\.)['\"]([^'\"]+)['\"]", rf'{_IN_QUOTES}"\1\2"', r'"\1\2"'),
        (r"\bmetadata\[['\"]?([^]'\"]+)['\"]?\]", rf'{_IN_QUOTES}"metadata.\1"', r'"metadata.\1"'),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*", "a time stands in TIMESTAMP('…')", _A_TIME),
        (r"\*", "% is any text in a pattern of LIKE; to match everything, send no filter", "%"),
        (r"(?<![\w.])([\w.]+)\[\d+\]([\w.]*)",
         r'an element of an array has no number: "\1[]\2" is any of them', r'"\1[]\2"'),
        (r"(?<=\bin )([\w.]+)",
         "IN takes a list in brackets; an element of an array is found by =", r"\1 = 'value'"),
        (r";", "a filter is one condition, without a ;", ""),
        (r"\{", "JSON is sent as an object, or as text with filter-lang=cql2-json", "cql2-json"),
    )
)
# fmt: on
_BEFORE: Final = 32  # characters that a slip may begin before the place
_AFTER: Final = 256


def slip_at(source: str, at: SourceRange) -> Refusal | None:
    """Return the error at a place, where the parser stopped, with a suggestion; None: unknown."""
    offset = at.start or 0
    for written, message, meant in _SLIPS:
        for start in range(max(0, offset - _BEFORE), offset + 1):
            match = written.match(source, start, offset + _AFTER)
            if match is not None and match.start() <= offset < match.end():
                return Refusal(match.expand(message), at, (match.expand(meant),) if meant else ())
    # a name with characters that require quotes: `tags[]`, `user@host`, `2nd`
    begin = offset
    while begin > 0 and offset - begin < 256 and re.match(_WORD, source[begin - 1]):
        begin -= 1
    name = _NAME.match(source, begin, begin + 512)
    if begin == offset or name is None or name.end() <= offset:
        return None
    message = "write a name with other characters in double quotes"
    return Refusal(message, at, (quoted(name[0]),))


def quoted(name: str) -> str:
    """Return a name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def meant_by(node: Node) -> str | None:
    """Suggest an expression in place of an unknown name, or of one side of a mismatch.

    `camera-id` (a subtraction of names) becomes `"camera-id"`; `"Toronto"` becomes `'Toronto'`.
    None: it is probably meant as it is written.
    """
    if isinstance(node, Named):
        if node.quoted:
            return "'" + node.name.replace("'", "''") + "'"
        return "now()" if node.name.lower() == "now" else None
    name = _hyphenated(node)
    return None if name is None or re.fullmatch(r"[\d-]+", name) else quoted(name)


def _hyphenated(node: Node) -> str | None:
    """Return the name that a subtraction without blanks was meant as."""
    match node:
        case Named(name, quoted=False):
            return name
        case Scalar(value=Decimal() as number, at=at) if number.as_tuple().exponent == 0:
            return str(number).zfill((at.end or 0) - (at.start or 0))
        case Operation("-", (left, right)) if left.at.end and right.at.start == left.at.end + 1:
            parts = _hyphenated(left), _hyphenated(right)
            return None if None in parts else "-".join(map(str, parts))
    return None
