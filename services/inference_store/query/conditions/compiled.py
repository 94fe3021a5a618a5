"""Compiles a typed filter to conditions: each node as true, or as false."""

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from inference_store.inference.metadata import COORDINATES
from inference_store.query.filters import typed
from inference_store.query.filters.typed import Constant, Predicate, Value

from .comparisons import OPPOSITE, Compares, Comparing, list_values, put_constant_right
from .condition import EVERYTHING, NOTHING, Condition
from .equality_lists import merge_equalities
from .has_value import HasValue
from .keys import OfKey, OfSet
from .location import WithinArea
from .logic import Neither, combine_all, combine_either
from .names import Names, is_label
from .predictions import Counts, Predicts, TopLabelled, merge_scores, names_labels
from .sets import Related
from .time_received import find_time_ranges, find_uid_range
from .values import list_leaves

_DECIDES: Final = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_condition(predicate: Predicate, names: Names, *, when: bool = True) -> Condition:
    """Compile a predicate to the condition that it is true, or (`when` False) false; never NULL."""
    return _COMPILERS[type(predicate)](predicate, names.compiled_by(compile_condition), when)


def _fixed(predicate: typed.Fixed, _: Names, when: bool) -> Condition:
    return EVERYTHING if predicate.value is when else NOTHING


def _not(predicate: typed.Not, names: Names, when: bool) -> Condition:
    return compile_condition(predicate.of, names, when=not when)


def _and(predicate: typed.And, names: Names, when: bool) -> Condition:
    parts = [compile_condition(part, names, when=when) for part in predicate.parts]
    return combine_all(merge_scores(parts)) if when else combine_either(parts)


def _or(predicate: typed.Or, names: Names, when: bool) -> Condition:
    parts = [
        compile_condition(part, names, when=when) for part in merge_equalities(predicate.parts)
    ]
    return combine_either(parts) if when else combine_all(parts)


def _unknown(predicate: typed.Unknown, names: Names, when: bool) -> Condition:
    decided = [compile_condition(predicate.of, names, when=truth) for truth in (True, False)]
    either = combine_either(decided)
    if when:
        return NOTHING if either == EVERYTHING else Neither((either,))
    return either


def _comparison(predicate: Compares, names: Names, when: bool) -> Condition:
    predicate = put_constant_right(predicate)
    if any(
        _has_none(leaf, names) for value in list_values(predicate) for leaf in list_leaves(value)
    ):
        return NOTHING
    return (
        _of_time(predicate, names, when)
        or _of_uid(predicate, when)
        or _led(predicate, Comparing(predicate, when, names))
    )


def _has_none(leaf: Value, names: Names) -> bool:
    """Check whether no inference can have such a value."""
    if isinstance(leaf, typed.Metadata):
        return leaf.key is None
    return isinstance(leaf, typed.Distance) and not _mapped(names)


def _mapped(names: Names) -> bool:
    return set(COORDINATES) <= set(names.coordinates)


def _of_time(predicate: Compares, names: Names, when: bool) -> Condition | None:
    """Compile `received_at`, which is never NULL, compared with an instant."""
    received = typed.Property("received_at", "timestamp")
    match predicate:
        case typed.Compared(op, left, Constant(_, at)) if left == received:
            return combine_either(list(find_time_ranges(op if when else OPPOSITE[op], at)))  # type: ignore[arg-type]
        case typed.Between(of, Constant() as low, Constant() as high) if of == received:
            bounds = typed.Compared(">=", of, low), typed.Compared("<=", of, high)
            return _and(typed.And(bounds), names, when)
    return None


def _of_uid(predicate: Compares, when: bool) -> Condition | None:
    match predicate:
        case typed.Compared("=", typed.Property("uid"), Constant(_, text)) if when:
            return combine_either(list(find_uid_range(str(text))))
    return None


def _led(predicate: Compares, comparing: Comparing) -> Condition:
    """Return the comparison by a list from an index of predictions, if there is one."""
    match predicate:
        case typed.Compared(op, typed.Counted() as counted, Constant() as number):
            op = op if comparing.when else OPPOSITE[op]
            if names_labels(counted.condition) and not _DECIDES[op](Decimal(0), number.value):
                return Counts(comparing, counted, op, number)
        case typed.Compared("=", of, Constant()) | typed.Among(of) if comparing.when:
            if is_label(of) and isinstance(of, typed.Property):
                return TopLabelled(comparing)
    return comparing


def _missing(predicate: typed.Missing, names: Names, when: bool) -> Condition:
    of = predicate.of
    if isinstance(of, typed.Metadata):
        if of.key is None:
            return EVERYTHING if when else NOTHING
        return OfKey(of.key, names, valued=True, when=not when, many=of.many)
    if any(_has_none(leaf, names) for leaf in list_leaves(of)):
        return EVERYTHING if when else NOTHING
    return HasValue(of, not when, names)


def _sent(predicate: typed.Sent, names: Names, when: bool) -> Condition:
    if predicate.key is None:
        return NOTHING if when else EVERYTHING
    return OfKey(predicate.key, names, valued=False, when=when, many=predicate.many)


def _located(predicate: typed.Located, names: Names, when: bool) -> Condition:
    return WithinArea(predicate, when, names) if _mapped(names) else NOTHING


def _array(predicate: typed.Array, names: Names, when: bool) -> Condition:
    return NOTHING if _has_none(predicate.of, names) else OfSet(predicate, when, names)


def _sets(predicate: typed.Sets, names: Names, when: bool) -> Condition:
    left, right = (
        tuple(_there(element, names) for element in side)
        for side in (predicate.left, predicate.right)
    )
    if not all((*left, *right)):
        return NOTHING
    return Related(typed.Sets(predicate.relation, left, right), when, names)


def _there(element: typed.Element, names: Names) -> typed.Element:
    """Remove values that no inference has."""
    return tuple(
        of for of in element if not any(_has_none(leaf, names) for leaf in list_leaves(of))
    )


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, Names, bool], Condition]]] = {
    typed.Fixed: _fixed,
    typed.Compared: _comparison,
    typed.Between: _comparison,
    typed.Among: _comparison,
    typed.Like: _comparison,
    typed.Holds: _comparison,
    typed.Missing: _missing,
    typed.Unknown: _unknown,
    typed.Sent: _sent,
    typed.Predicted: lambda predicate, names, when: Predicts(predicate.condition, when, names),
    typed.Located: _located,
    typed.Array: _array,
    typed.Sets: _sets,
    typed.Not: _not,
    typed.And: _and,
    typed.Or: _or,
}
