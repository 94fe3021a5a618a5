"""The typed value of a node, as a kind that is possible for it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, cast

from inference_store.inference.errors import ImpossibleComparison, UnknownKey
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.tree import Instant, Named, Node, Operation, Scalar
from inference_store.query.filters import typed
from inference_store.query.filters.checking import Checking
from inference_store.query.filters.folding import FOLDINGS
from inference_store.query.filters.known import KnownKey
from inference_store.query.filters.mismatches import mismatch
from inference_store.query.filters.refusals import hinted
from inference_store.query.filters.typed import Constant, Folding, Kind, Value

from .bounds import refuse_many
from .calculations import calculated
from .functions import counted, distance
from .kinds import described, is_condition, possible
from .written import constant, instant

_NUMBER: Final = frozenset[Kind]({"number"})
_TEXT: Final = frozenset[Kind]({"string"})


def values(nodes: Sequence[Node], kind: Kind, checking: Checking) -> tuple[Value, ...]:
    """Several values of one comparison. Raises InvalidFilter for too many combinations."""
    found = tuple(value(node, kind, checking) for node in nodes)
    refuse_many(nodes[0], found, checking)
    return found


def value(node: Node, kind: Kind, checking: Checking) -> Value:
    """The value as a kind that is possible for it. Raises what a check raises."""
    match node:
        case Scalar():
            return constant(node, checking)
        case Instant():
            return Constant("timestamp", instant(node))
        case Named():
            return _named(node, kind, checking)
        case Operation() if is_condition(node):
            return _truth(node, checking)
        case Operation():
            return _of_operation(node, checking)
    raise mismatch([node], [frozenset()], checking)


def _named(named: Named, kind: Kind, checking: Checking) -> Value:
    found = described(named, checking)
    if isinstance(found, KnownKey):
        checking.warn_of_others(found, kind)
        return typed.Metadata(found.name, found.key, kind, found.many)
    made = typed.Column if checking.inside else typed.Property
    return made(found.name, kind)


def _truth(node: Operation, checking: Checking) -> Value:
    with checking.asked_twice(node):
        found = checking.to_predicate(node, checking)
    if isinstance(found, typed.Fixed) and found.value is not None:
        return Constant("bool", found.value)
    return typed.PredicateValue(found)


def _of_operation(node: Operation, checking: Checking) -> Value:
    match node.op.lower():
        case "casei" | "accenti":
            return _folded(node, checking)
        case "count_predictions":
            return counted(node, checking)
        case "distance":
            return distance(node, checking)
    left, right = _numbers(node, checking)
    return calculated(node, left, right, checking)


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


def _folded(node: Operation, checking: Checking) -> Value:
    how, [of] = cast(Folding, node.op.lower()), node.args
    kinds = possible(of, checking)
    if "string" not in kinds:
        raise mismatch([Scalar("", node.at), of], [_TEXT, kinds], checking)
    found = value(of, "string", checking)
    if isinstance(found, Constant):
        return Constant("string", FOLDINGS[how](str(found.value)))
    return typed.Folded(how, found)
