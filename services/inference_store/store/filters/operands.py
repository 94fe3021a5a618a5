"""What stands in a comparison: which kinds it can be, and the typed value of one of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, cast

from inference_store.store.cql2 import meant_by
from inference_store.store.cql2.tree import Geometry, Instant, Named, Node, Operation, Scalar
from inference_store.store.errors import ImpossibleComparison, UnknownKey
from inference_store.store.json_text import storable
from inference_store.store.metadata import MetadataCaps
from inference_store.store.properties import Property as Described

from . import names, typed
from .arithmetic import MOST_EXPONENT, calculate
from .checking import Checking
from .digits import digits, written
from .folding import FOLDINGS
from .known import KINDS, KnownKey
from .mismatches import mismatch
from .refusals import hinted, meaningless, not_kept
from .typed import Calculation, Constant, Folding, Kind, Value

_CAPS: Final = MetadataCaps()
MOST_WRITTEN: Final = 4_000
"""Digits of what is calculated while a filter is checked."""
MOST_MANY: Final = 2
"""Names with several values in one comparison, whose combinations are all looked at."""
MOST_NAMES: Final = 8
"""Different names in one comparison: a row is joined for each."""
_NUMBERS: Final = frozenset({"+", "-", "*", "/", "%", "div", "^", "count_predictions", "distance"})
_TEXTS: Final = frozenset({"casei", "accenti"})


def possible(node: Node, checking: Checking) -> frozenset[Kind]:
    """The kinds that a node can be; none: it is nothing that can be compared."""
    match node:
        case Scalar():
            return frozenset[Kind]({_kind_of(node)})
        case Instant():
            return frozenset[Kind]({"timestamp"})
        case Named():
            return _possible_name(node, checking)
        case Operation(op=op) if op.lower() in _NUMBERS:
            return frozenset[Kind]({"number"})
        case Operation(op=op) if op.lower() in _TEXTS:
            return frozenset[Kind]({"string"})
    return frozenset()


def _kind_of(scalar: Scalar) -> Kind:
    if isinstance(scalar.value, bool):
        return "bool"
    return "string" if isinstance(scalar.value, str) else "number"


def _possible_name(named: Named, checking: Checking) -> frozenset[Kind]:
    found = described(named, checking)
    if isinstance(found, KnownKey):
        return found.kinds
    if found.kind == "location":
        message = "a location is no value to compare: ask by S_INTERSECTS(location, …)"
        raise meaningless(named, checking.source, message)
    return frozenset[Kind]({found.kind})


def described(named: Named, checking: Checking) -> Described | KnownKey:
    """What a name is, where it stands."""
    return names.column(named, checking) if checking.inside else names.meaning(named, checking)


def common(nodes: Sequence[Node], checking: Checking) -> Kind:
    """The kind that all can be compared as: the one of most rows. Raises ImpossibleComparison."""
    kinds = [possible(node, checking) for node in nodes]
    shared = frozenset(KINDS).intersection(*kinds)
    if not shared:
        raise mismatch(nodes, kinds, checking)
    keys = [each for node in nodes if (each := _key(node, checking)) is not None]

    def weight(kind: Kind) -> tuple[int, int]:
        rows = min((key.rows.get(kind, 0) for key in keys), default=0)
        return -rows, KINDS.index(kind)

    return min(shared, key=weight)


def _key(node: Node, checking: Checking) -> KnownKey | None:
    if not isinstance(node, Named) or checking.inside:
        return None
    found = names.meaning(node, checking)
    return found if isinstance(found, KnownKey) else None


def values(nodes: Sequence[Node], kind: Kind, checking: Checking) -> tuple[Value, ...]:
    """Several values of one comparison. Raises InvalidFilter for too many combinations."""
    found = tuple(value(node, kind, checking) for node in nodes)
    refuse_many(nodes[0], found, checking)
    return found


def refuse_many(node: Node, found: Sequence[Value], checking: Checking) -> None:
    """Raises InvalidFilter for more combinations than can be looked at."""
    named = [leaf for each in found for leaf in _names(each)]
    if sum(map(_many, named)) > MOST_MANY:
        message = f"at most {MOST_MANY} names with several values can stand in one comparison"
        raise meaningless(node, checking.source, message)
    if len(set(named)) > MOST_NAMES:
        message = f"at most {MOST_NAMES} different names can stand in one comparison"
        raise meaningless(node, checking.source, message)


def _names(of: Value) -> Iterator[Value]:
    match of:
        case typed.Metadata() | typed.Property() | typed.Column():
            yield of
        case typed.Calculated():
            yield from _names(of.left)
            yield from _names(of.right)
        case typed.Folded():
            yield from _names(of.of)


def _many(of: Value) -> bool:
    if isinstance(of, typed.Metadata):
        return of.many
    return isinstance(of, typed.Property) and of.name == "inference_ids"


def value(node: Node, kind: Kind, checking: Checking) -> Value:
    """The value as a kind that is possible for it. Raises what a check raises."""
    match node:
        case Scalar():
            return constant(node, checking)
        case Instant():
            return Constant("timestamp", instant(node))
        case Named():
            return _named(node, kind, checking)
        case Operation():
            return _OPERATIONS.get(node.op.lower(), _calculated)(node, checking)
    raise mismatch([node], [frozenset()], checking)


def constant(scalar: Scalar, checking: Checking) -> Constant:
    """What was written. Raises InvalidFilter for what no stored value can be."""
    stood = scalar.value
    if isinstance(stood, str) and not storable(stood):
        message = "the text holds NUL or a lone surrogate, and no stored text does"
        raise meaningless(scalar, checking.source, message)
    if isinstance(stood, Decimal):
        most = _CAPS.digits + _CAPS.exponent
        if not stood.is_finite() or max(written(stood)) > most:
            message = f"a number has at most {most} digits on either side of the point"
            raise meaningless(scalar, checking.source, message)
    return Constant(_kind_of(scalar), stood)


def instant(node: Instant) -> datetime:
    """The instant in UTC; a date is its midnight."""
    if isinstance(node.value, datetime):
        return node.value.astimezone(UTC)
    return datetime(node.value.year, node.value.month, node.value.day, tzinfo=UTC)


def _named(named: Named, kind: Kind, checking: Checking) -> Value:
    found = described(named, checking)
    if isinstance(found, KnownKey):
        checking.warn_of_others(found, kind)
        return typed.Metadata(found.name, found.key, kind, found.many)
    made = typed.Column if checking.inside else typed.Property
    return made(found.name, kind)


def _calculated(node: Operation, checking: Checking) -> Value:
    op = cast(Calculation, node.op.lower())
    left, right = _numbers(node, checking)
    if op == "^":
        _refuse_exponent(node, right, checking)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _settled(node, op, left, right, checking)
    made = typed.Calculated(op, left, right)
    _refuse_digits(node, made, checking)
    return made


def _numbers(node: Operation, checking: Checking) -> Sequence[Value]:
    try:
        _refuse_no_numbers(node, checking)
        return [value(each, "number", checking) for each in node.args]
    except (ImpossibleComparison, UnknownKey) as exc:
        # A subtraction of names without blanks was a name with hyphens.
        raise hinted(exc, meant_by(node)) from None


def _refuse_no_numbers(node: Operation, checking: Checking) -> None:
    for each in node.args:
        kinds = possible(each, checking)
        if "number" not in kinds:
            wanted = Scalar(Decimal(0), node.at)
            raise mismatch([wanted, each], [_NUMBER, kinds], checking, stands_in=wanted)


_NUMBER: Final = frozenset[Kind]({"number"})


def _settled(
    node: Operation, op: Calculation, left: Constant, right: Constant, checking: Checking
) -> Value:
    """Constants are calculated here; without a result it stays, and is NULL."""
    made = typed.Calculated(op, left, right)
    _refuse_digits(node, made, checking)
    if sum(digits(made)) > MOST_WRITTEN:
        message = f"a calculation that is written out comes to at most {MOST_WRITTEN} digits"
        raise meaningless(node, checking.source, message)
    assert isinstance(left.value, Decimal)
    assert isinstance(right.value, Decimal)
    result = calculate(op, left.value, right.value)
    return made if result is None else Constant("number", result)


def _refuse_exponent(node: Operation, exponent: Value, checking: Checking) -> None:
    number = exponent.value if isinstance(exponent, Constant) else None
    whole = isinstance(number, Decimal) and number == number.to_integral_value()
    if not whole or not 0 <= cast(Decimal, number) <= MOST_EXPONENT:
        message = f"an exponent is a whole number from 0 to {MOST_EXPONENT}, written out"
        raise not_kept(node.args[1], checking.source, message, "arithmetic")


def _refuse_digits(node: Operation, made: Value, checking: Checking) -> None:
    if digits(made).too_many:
        message = "the calculation may come to more digits than can be calculated exactly"
        raise meaningless(node, checking.source, message)


def _folded(node: Operation, checking: Checking) -> Value:
    how, [of] = cast(Folding, node.op.lower()), node.args
    kinds = possible(of, checking)
    if "string" not in kinds:
        raise mismatch([Scalar("", node.at), of], [frozenset[Kind]({"string"}), kinds], checking)
    found = value(of, "string", checking)
    if isinstance(found, Constant):
        return Constant("string", FOLDINGS[how](str(found.value)))
    return typed.Folded(how, found)


def _counted(node: Operation, checking: Checking) -> Value:
    return typed.Counted(condition(node, checking))


def condition(node: Operation, checking: Checking) -> typed.Truth | None:
    """The condition of `prediction(…)` and `count_predictions(…)`; None: without one."""
    refuse_inside(node, checking)
    if not node.args:
        return None
    with checking.of_predictions():
        return checking.truth_of(node.args[0], checking)


def refuse_inside(node: Operation, checking: Checking) -> None:
    """What is said of the inference cannot be said of a prediction."""
    if checking.inside:
        message = f"{node.op}() cannot stand inside prediction(…)"
        raise meaningless(node, checking.source, message)


def _distance(node: Operation, checking: Checking) -> Value:
    refuse_inside(node, checking)
    for of, to in (node.args, node.args[::-1]):
        if is_location(of, checking) and isinstance(to, Geometry) and to.shape == "Point":
            longitude, latitude = cast(tuple[Decimal, ...], to.coordinates)[:2]
            if abs(longitude) > 180 or abs(latitude) > 90:
                message = (
                    "the point lies off the map: a longitude is from -180 to 180, a latitude from "
                    "-90 to 90"
                )
                raise meaningless(to, checking.source, message)
            return typed.Distance(longitude, latitude)
    message = "distance() takes the location and a point: distance(location, POINT(13.4 52.5))"
    raise meaningless(node, checking.source, message)


def is_location(node: Node, checking: Checking) -> bool:
    """Whether a node is the inference's location."""
    if not isinstance(node, Named):
        return False
    found = names.meaning(node, checking)
    return not isinstance(found, KnownKey) and found.kind == "location"


_OPERATIONS: Final[Mapping[str, Callable[[Operation, Checking], Value]]] = {
    "casei": _folded,
    "accenti": _folded,
    "count_predictions": _counted,
    "distance": _distance,
}
