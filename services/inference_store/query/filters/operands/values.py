"""Converts a node to a typed value, of a kind that is possible for it."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, cast

from inference_store.inference.errors import ImpossibleComparison, UnknownKey
from inference_store.query.cql2 import meant_by
from inference_store.query.cql2.tree import Instant, Named, Node, Operation, Scalar
from inference_store.query.filters import typed
from inference_store.query.filters.arithmetic import MOST_EXPONENT, calculate
from inference_store.query.filters.digits import digits
from inference_store.query.filters.filter_check import FilterCheck
from inference_store.query.filters.folding import FOLDINGS
from inference_store.query.filters.known_keys import KnownKey
from inference_store.query.filters.mismatches import mismatch
from inference_store.query.filters.refusals import hinted, meaningless
from inference_store.query.filters.typed import (
    Calculated,
    Calculation,
    Constant,
    Folding,
    Kind,
    Value,
)

from .bounds import refuse_many
from .functions import counted, distance
from .kinds import described, is_condition, possible
from .literals import constant, instant

_NUMBER: Final = frozenset[Kind]({"number"})
_TEXT: Final = frozenset[Kind]({"string"})


def values(nodes: Sequence[Node], kind: Kind, checking: FilterCheck) -> tuple[Value, ...]:
    """Return the values of one comparison. Raises InvalidFilter for too many combinations."""
    typed_values = tuple(value(node, kind, checking) for node in nodes)
    refuse_many(nodes[0], typed_values, checking)
    return typed_values


def value(node: Node, kind: Kind, checking: FilterCheck) -> Value:
    """Return the value as a kind that is possible for it. Raises what `check` does."""
    match node:
        case Scalar():
            return constant(node, checking)
        case Instant():
            return Constant("timestamp", instant(node))
        case Named():
            return _make_name_value(node, kind, checking)
        case Operation() if is_condition(node):
            return _truth(node, checking)
        case Operation():
            return _of_operation(node, checking)
    raise mismatch([node], [frozenset()], checking)


def _make_name_value(node: Named, kind: Kind, checking: FilterCheck) -> Value:
    resolved = described(node, checking)
    if isinstance(resolved, KnownKey):
        checking.warn_of_others(resolved, kind)
        return typed.Metadata(resolved.name, resolved.key, kind, resolved.many)
    make = typed.Column if checking.inside else typed.Property
    return make(resolved.name, kind)


def _truth(node: Operation, checking: FilterCheck) -> Value:
    with checking.evaluated_twice(node):
        predicate = checking.to_predicate(node, checking)
    if isinstance(predicate, typed.Fixed) and predicate.value is not None:
        return Constant("bool", predicate.value)
    return typed.PredicateValue(predicate)


def _of_operation(node: Operation, checking: FilterCheck) -> Value:
    match node.op.lower():
        case "casei" | "accenti":
            return _folded(node, checking)
        case "count_predictions":
            return counted(node, checking)
        case "distance":
            return distance(node, checking)
    left, right = _numbers(node, checking)
    return calculated(node, left, right, checking)


def _numbers(node: Operation, checking: FilterCheck) -> Sequence[Value]:
    try:
        _refuse_no_numbers(node, checking)
        return [value(arg, "number", checking) for arg in node.args]
    except (ImpossibleComparison, UnknownKey) as exc:
        # A subtraction of names without blanks was probably a name with hyphens.
        raise hinted(exc, meant_by(node)) from None


def _refuse_no_numbers(node: Operation, checking: FilterCheck) -> None:
    for arg in node.args:
        kinds = possible(arg, checking)
        if "number" not in kinds:
            number = Scalar(Decimal(0), node.at)
            raise mismatch([number, arg], [_NUMBER, kinds], checking, stands_in=number)


def _folded(node: Operation, checking: FilterCheck) -> Value:
    how, [of] = cast(Folding, node.op.lower()), node.args
    kinds = possible(of, checking)
    if "string" not in kinds:
        raise mismatch([Scalar("", node.at), of], [_TEXT, kinds], checking)
    text = value(of, "string", checking)
    if isinstance(text, Constant):
        return Constant("string", FOLDINGS[how](str(text.value)))
    return typed.Folded(how, text)


MOST_WRITTEN: Final = 4_000
"""Digits of a calculation that is evaluated during the check."""


def calculated(node: Operation, left: Value, right: Value, checking: FilterCheck) -> Value:
    """Return the calculation of two numbers. Raises InvalidFilter for too many digits."""
    calculation = _make_calculation(node, left, right)
    _refuse_digits(node, calculation, checking)
    if isinstance(left, Constant) and isinstance(right, Constant):
        return _settled(node, calculation, left, right, checking)
    return calculation


def _make_calculation(node: Operation, left: Value, right: Value) -> Calculated:
    """Return the calculation; `^` is exact if it can be, else it becomes `power`, a double."""
    calculation = Calculated(cast(Calculation, node.op.lower()), left, right)
    if calculation.op == "^" and (not _is_few(right) or digits(calculation).too_many):
        return Calculated("power", left, right)
    return calculation


def _is_few(exponent: Value) -> bool:
    """Check whether it is a literal whole number, small enough to multiply the power out."""
    number = exponent.value if isinstance(exponent, Constant) else None
    if not isinstance(number, Decimal) or not 0 <= number <= MOST_EXPONENT:
        return False
    return number == number.to_integral_value()


def _settled(
    node: Operation, calculation: Calculated, left: Constant, right: Constant, checking: FilterCheck
) -> Value:
    """Evaluate a calculation of constants; without a result it stays, and is NULL."""
    if sum(digits(calculation)) > MOST_WRITTEN:
        message = f"a calculation that is written out comes to at most {MOST_WRITTEN} digits"
        raise meaningless(node, checking.source, message)
    assert isinstance(left.value, Decimal)
    assert isinstance(right.value, Decimal)
    result = calculate(calculation.op, left.value, right.value)
    return calculation if result is None else Constant("number", result)


def _refuse_digits(node: Operation, calculation: Value, checking: FilterCheck) -> None:
    if digits(calculation).too_many:
        message = "the calculation may come to more digits than can be calculated exactly"
        raise meaningless(node, checking.source, message)
