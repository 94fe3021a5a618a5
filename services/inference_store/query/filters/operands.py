"""Operands of comparisons: their possible kinds, and their typed values."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, cast

from inference_store.inference.errors import ImpossibleComparison, UnknownKey
from inference_store.inference.json_text import is_number, storable
from inference_store.inference.metadata import COORDINATES, METADATA_TYPES
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.literals import CAPS
from inference_store.query.cql2.tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Refusal,
    Scalar,
    SourceRange,
)
from inference_store.query.cql2.verify import kind_of as form_of
from inference_store.query.properties import Property as Described

from . import names, typed
from .arithmetic import MOST_DIGITS, calculate, digits, is_exact_power
from .names import ITEM_FUNCTIONS, KINDS, FilterCheck, KnownKey, impossible, meaningless
from .typed import Applied, Constant, Function, Kind, Point, Value


def without_accents(text: str) -> str:
    """Return a text without combining marks: decomposed (NFD), marks dropped, composed (NFC)."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text)
    base = "".join(character for character in apart if unicodedata.category(character) != "Mn")
    return unicodedata.normalize("NFC", base)


# Unicode's full folding: `Straße` and `STRASSE` are equal.
FOLDINGS: Final[Mapping[str, Callable[[str], str]]] = {
    "casei": str.casefold,
    "accenti": without_accents,
}


def values(nodes: Sequence[Node], kind: Kind, checking: FilterCheck) -> tuple[Value, ...]:
    """Return the values of one comparison. Raises InvalidFilter for too many combinations."""
    typed_values = tuple(value(node, kind, checking) for node in nodes)
    refuse_many(nodes[0], typed_values)
    return typed_values


def value(node: Node, kind: Kind, checking: FilterCheck) -> Value:
    """Return the value as a kind that is possible for it. Raises what `check` does."""
    match node:
        case Scalar() | Instant():
            return constant(node, kind)
        case Named():
            return _make_name_value(node, kind, checking)
        case Operation() if is_condition(node):
            return _truth(node, checking)
        case Operation():
            return _FUNCTIONS.get(node.op, _calculated)(node, checking)
    raise mismatch([node], [frozenset()], checking)


def _make_name_value(node: Named, kind: Kind, checking: FilterCheck) -> Value:
    resolved = described(node, checking)
    array = f"{resolved.name}[]"
    if isinstance(resolved, KnownKey) and array in checking.known_keys.keys:
        checking.warn(f"{resolved.name!r} also came as an array: its elements are {array!r}.")
    if checking.inside is not None:
        return typed.Column(resolved.name, kind, checking.inside)
    return of_kind(resolved, kind)


def of_kind(resolved: KnownKey | Described, kind: Kind) -> typed.Metadata | typed.Property:
    """Return the values, of one kind, of a key or property."""
    if isinstance(resolved, KnownKey):
        return typed.Metadata(resolved.name, resolved.key, kind, resolved.many)
    return typed.Property(resolved.name, kind)


def _truth(node: Operation, checking: FilterCheck) -> Value:
    predicate = checking.to_predicate(node, checking)
    if isinstance(predicate, typed.Fixed) and predicate.value is not None:
        return Constant("bool", predicate.value)
    return typed.PredicateValue(predicate)


def _folded(node: Operation, checking: FilterCheck) -> Value:
    [of] = node.args
    require("string", of, checking, at=node.at)
    text = value(of, "string", checking)
    folded = Applied(cast(Function, node.op), (text,))
    return fold_alike(folded, text) if isinstance(text, Constant) else folded


def fold_alike(like: Value, text: Value) -> Value:
    """Return a constant text folded as a value is that is compared with it; others as they are."""
    match like, text:
        case Applied("casei" | "accenti" as how, (of,)), Constant():
            inner = fold_alike(of, text)
            assert isinstance(inner, Constant)
            return Constant("string", FOLDINGS[how](str(inner.value)))
    return text


def _calculated(node: Operation, checking: FilterCheck) -> Value:
    try:
        for arg in node.args:
            require("number", arg, checking, at=node.at)
        left, right = (value(arg, "number", checking) for arg in node.args)
    except Refusal as refused:
        # A subtraction of names without blanks was probably a name with hyphens.
        if refused.error in (ImpossibleComparison, UnknownKey):
            refused.hint(meant_by(node))
        raise
    is_rounded = node.op == "^" and not is_exact_power(left, right)
    calculation = Applied("power" if is_rounded else cast(Function, node.op), (left, right))
    if digits(calculation) > MOST_DIGITS:
        message = "the calculation may come to more digits than can be calculated exactly"
        raise meaningless(node, message)
    return calculate(calculation)


def condition(node: Operation, checking: FilterCheck) -> typed.Predicate | None:
    """Return the condition of `prediction(…)`, `count_truth(…)`, …; None: it has none."""
    refuse_inside(node, checking)
    if not node.args:
        return None
    checking.inside = ITEM_FUNCTIONS[node.op]
    try:
        return checking.to_predicate(node.args[0], checking)
    finally:
        checking.inside = None


def refuse_inside(node: Operation, checking: FilterCheck) -> None:
    """Refuse a function of the inference inside a condition on an item."""
    if checking.inside:
        raise meaningless(node, f"{node.op}() cannot stand inside {checking.inside}(…)")


def distance(node: Operation, checking: FilterCheck) -> Value:
    """Return the value of `distance(location, POINT(…))`."""
    refuse_inside(node, checking)
    for of, to in (node.args, node.args[::-1]):
        if is_location(of, checking) and isinstance(to, Geometry) and to.shape == "Point":
            return typed.Distance(*point_of(to.coordinates, to))
    message = "distance() takes the location and a point: distance(location, POINT(13.4 52.5))"
    raise meaningless(node, message)


_FUNCTIONS: Final[Mapping[str, Callable[[Operation, FilterCheck], Value]]] = {
    **dict.fromkeys(FOLDINGS, _folded),
    **dict.fromkeys(
        ("count_predictions", "count_truth"),
        lambda node, checking: typed.Counted(condition(node, checking), ITEM_FUNCTIONS[node.op]),
    ),
    "distance": distance,
}


def is_location(node: Node, checking: FilterCheck) -> bool:
    """Check whether a node is the inference's location."""
    if not isinstance(node, Named):
        return False
    resolved = names.meaning(node, checking)
    return not isinstance(resolved, KnownKey) and resolved.kind == "location"


_OF_FORM: Final[Mapping[str, Kind]] = {
    **{"number": "number", "text": "string", "truth": "bool", "instant": "timestamp"}
}


def possible(node: Node, checking: FilterCheck) -> frozenset[Kind]:
    """Return the possible kinds of a node; empty: it cannot be compared."""
    match node:
        case Named():
            resolved = described(node, checking)
            if isinstance(resolved, KnownKey):
                return resolved.kinds
            if resolved.kind == "location":
                message = "a location cannot be compared: use S_INTERSECTS(location, …)"
                raise meaningless(node, message)
            return frozenset[Kind]({resolved.kind})
        case Scalar(value=str() as text) if read_as("timestamp", text) is not None:
            return frozenset[Kind]({"string", "timestamp"})
    form = form_of(node)
    return frozenset({_OF_FORM[form]} if form in _OF_FORM else ())


def is_condition(node: Node) -> bool:
    """Check whether a node is a condition by its form; a name may be one too."""
    return isinstance(node, Operation) and form_of(node) == "truth"


def described(node: Named, checking: FilterCheck) -> Described | KnownKey:
    """Return the property, key or column that a name means at its place; an array: its elements."""
    if checking.inside:
        return names.column(node, checking.inside)
    return names.meaning(names.elements(node, checking.known_keys), checking)


def common(nodes: Sequence[Node], checking: FilterCheck) -> Kind:
    """Return the kind that all can be compared as, with most rows: a text that is written out is a
    text, if the key has texts. Raises ImpossibleComparison."""
    kinds = [possible(node, checking) for node in nodes]
    shared = frozenset(KINDS).intersection(*kinds)
    if not shared:
        raise mismatch(nodes, kinds, checking)
    keys = [key for node in nodes if (key := _key(node, checking)) is not None]
    if "string" in shared and any(isinstance(node, Scalar) for node in nodes):
        # one `n/a` does not make the times of a key texts
        stray = keys and all(key.only_stray_texts for key in keys)
        return "timestamp" if stray and "timestamp" in shared else "string"

    def weight(kind: Kind) -> tuple[int, int]:
        rows = min((key.rows.get(kind, 0) for key in keys), default=0)
        return -rows, KINDS.index(kind)

    return min(shared, key=weight)


def read_as(kind: Kind, value: Any) -> Any:
    """Return the typed value, parsed like stored metadata; None: it is not of this kind."""
    parse: Any = METADATA_TYPES["float" if kind == "number" else kind].parse
    return parse(str(value).lower() if isinstance(value, bool) else str(value), CAPS)[0]


def constant(literal: Scalar | Instant, kind: Kind) -> Constant:
    """Return the value of a literal; a date is its midnight, and a text may be an instant. Raises
    InvalidFilter if no stored value can equal it."""
    if isinstance(literal, Instant) or kind == "timestamp":
        return Constant("timestamp", read_as("timestamp", literal.value))
    stood = literal.value
    if isinstance(stood, str) and not storable(stood):
        message = "the text holds NUL or a lone surrogate, and no stored text does"
        raise meaningless(literal, message)
    return Constant(_OF_FORM[form_of(literal)], stood)


MOST_MANY: Final = 2
"""Names with several values in one comparison, which tests all their combinations."""
MOST_NAMES: Final = 8
"""Different names in one comparison: a row is joined for each."""


def refuse_many(node: Node, values: Sequence[Value]) -> None:
    """Raise InvalidFilter for too many combinations of values."""
    names = (typed.Metadata, typed.Property, typed.Column)
    leaves = [leaf for value in values for leaf in typed.leaves_of(value) if type(leaf) in names]
    if sum(map(typed.is_many, leaves)) > MOST_MANY or len(set(leaves)) > MOST_NAMES:
        message = f"in one comparison at most {MOST_NAMES} different names are allowed, and at most"
        raise meaningless(node, f"{message} {MOST_MANY} of them with several values")


_SWAPPED = "longitude and latitude may be swapped"


def point_of(coordinates: Any, node: Node) -> Point:
    """Return longitude and latitude of a position. Raises InvalidFilter if it is off the map."""
    longitude, latitude = coordinates[:2]
    if not _is_on_map(longitude, latitude):
        message = (
            f"({longitude} {latitude}) lies off the map: the longitude comes first, from -180 to "
            "180, then the latitude, from -90 to 90"
        )
        if _is_on_map(latitude, longitude):
            message += f"; {_SWAPPED}"
        raise meaningless(node, message)
    return longitude, latitude


def _is_on_map(longitude: Any, latitude: Any) -> bool:
    most = COORDINATES
    return bool(abs(longitude) <= most["longitude"] and abs(latitude) <= most["latitude"])


def refuse_off_map(
    name: str, nodes: Sequence[Node], values: Sequence[Value], checking: FilterCheck
) -> None:
    """Raise ImpossibleComparison for degrees that the coordinate never has, unless an inference of
    the requested models was sent with such a value."""
    if checking.is_saved or checking.keys[name].off_map:
        return
    most = COORDINATES[name]
    for node, value in zip(nodes, values, strict=True):
        degrees: Any = value.value if isinstance(value, Constant) else most
        if abs(degrees) > most:
            message = f"a {name} is from -{most} to {most}, and {degrees} is none"
            if abs(degrees) <= max(COORDINATES.values()):
                message += f": {_SWAPPED}"
            raise impossible(node, message)


def require(kind: Kind, node: Node, checking: FilterCheck, *, at: SourceRange) -> None:
    """Raise ImpossibleComparison if a node cannot be of the kind. `at`: what it is a part of."""
    kinds = possible(node, checking)
    if kind not in kinds:
        beside = Interval(None, None, at)  # nothing that was written
        raise mismatch([beside, node], [frozenset({kind}), kinds], checking)


_A: Final[Mapping[Kind, str]] = {
    **{"number": "a number", "string": "a text"},
    **{"bool": "a truth value", "timestamp": "an instant"},
}


def mismatch(
    nodes: Sequence[Node], kinds: Sequence[frozenset[Kind]], checking: FilterCheck
) -> Refusal:
    """Return the error for values without a common kind, at the place of the first odd one."""
    pairs = list(zip(nodes, kinds, strict=True))
    written = [node for node in nodes if not isinstance(node, Named)]
    without = [node for node, of_node in pairs if not of_node]
    odd = [*without[:1], *reversed(written), nodes[-1]][0]
    others = frozenset[Kind]().union(*(of_node for node, of_node in pairs if node is not odd))
    keys = [key for node in nodes if (key := _key(node, checking)) is not None]
    histories = [f"{key.name!r} has been seen as {', '.join(key.types)}" for key in keys]
    described = " and ".join(dict.fromkeys(_describe_node(*pair) for pair in pairs))
    message = "; ".join([f"{described} cannot be compared", *histories]) + _hint(odd, others, keys)
    types = tuple(dict.fromkeys(type_name for key in keys for type_name in key.types))
    meant = (meant_by(node) for node in nodes if isinstance(node, Operation))
    return impossible(odd, message, types).hint(next(filter(None, meant), None))


def _key(node: Node, checking: FilterCheck) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    resolved = names.meaning(node, checking)
    return resolved if isinstance(resolved, KnownKey) else None


def _describe_node(node: Node, kinds: frozenset[Kind]) -> str:
    kind_names = " or ".join(_A[kind] for kind in sorted(kinds))
    match node:
        case Named():
            return f"{node.name!r} ({kind_names})" if kinds else f"{node.name!r}"
        case Scalar(value=str() as text) if text:
            return f"{kind_names} ({text[:80]!r})"
        case Listed():
            return "a list"
        case Operation() if kinds == {"bool"}:
            return "a condition"
    return kind_names or "a geometry or an interval"


def _hint(odd: Node, expected: frozenset[Kind], keys: Sequence[KnownKey]) -> str:
    if any(not key.kinds and "json" in key.types for key in keys):
        return "; name a value inside it, such as `position.angle` or `tags[]`"
    match odd:
        case Scalar(value=str() as text) if "number" in expected and is_number(text):
            return f"; a number stands without quotes: {text}"
        case Scalar(value=str()) if expected == {"timestamp"}:
            return "; a time is written 2026-11-01T10:00:00Z, a day 2026-11-01"
        case Scalar(value=str() as text) if "bool" in expected and text.lower() in _TRUTHS:
            return f"; write a boolean without quotes: {text.upper()}"
        case Scalar(value=Decimal() as stood) | Instant(value=stood) if expected == {"string"}:
            text = str(stood) if isinstance(stood, Decimal) else stood.isoformat()
            return f"; write a text in single quotes: '{text}'"
    return ""


_TRUTHS: Final = frozenset({"true", "false"})
