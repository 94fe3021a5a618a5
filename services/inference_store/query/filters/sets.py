"""Relations of two sets: names, or arrays that may contain names and calculations."""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Final, Literal, TypeAlias

from inference_store.query.cql2.tree import Geometry, Interval, Listed, Named, Node, Scalar
from inference_store.query.properties import Property as Described

from . import names, operands
from .constant_predicates import settle
from .evaluate import ARRAYS
from .filter_check import FilterCheck
from .known_keys import KnownKey
from .mismatches import mismatch
from .refusals import meaningless
from .typed import And, Constant, Element, Kind, Metadata, Not, Or, Predicate, Property, Sets

Relation: TypeAlias = Literal["equals", "contains", "containedby", "overlaps"]
MOST_CALCULATED: Final = 8
"""Elements of the two arrays that are not literals."""


def check_array_relation(
    left: Named | Listed, relation: Relation, right: Named | Listed, checking: FilterCheck
) -> Predicate:
    """Return the predicate for the relation. Raises InvalidFilter, ImpossibleComparison."""
    for of, against in ((left, right), (right, left)):
        if isinstance(of, Named) and isinstance(against, Listed):
            refuse_one_value(elements(of, checking), checking)
    sides = [_side(array, checking) for array in (left, right)]
    _refuse_long(left, [element for side in sides for element in side], checking)
    _refuse_impossible(left, right, checking)
    predicate = settle(Sets(relation, tuple(sides[0]), tuple(sides[1])))
    return _with_others(predicate, relation, _others(left), _others(right))


def elements(node: Named, checking: FilterCheck) -> Named:
    """Return the name of the elements for the name of a JSON array; else the same name."""
    elements = f"{node.name}[]"
    if checking.known_keys.keys.get(names.key_of(Named(elements))) is None:
        return node
    whole = checking.known_keys.keys.get(names.key_of(node))
    return node if whole is not None and whole.rows else Named(elements, at=node.at)


def refuse_one_value(of: Named, checking: FilterCheck) -> None:
    """Raise InvalidFilter for a name with a single value; an unseen key may have several."""
    resolved = names.meaning(of, checking)
    if resolved.many or (isinstance(resolved, KnownKey) and not resolved.types):
        return
    suggestions = (f'"{of.name}[]"',) if f"{names.key_of(of)}[]" in checking.known_keys.keys else ()
    message = f"{of.name!r} has one value: compare it by = or IN"
    raise meaningless(of, checking.source, message, suggestions)


def _side(array: Named | Listed, checking: FilterCheck) -> list[Element]:
    if isinstance(array, Named):
        return [_of_name(elements(array, checking), checking)]
    return [_item(item, checking) for item in array.items if not _is_other(item)]


def _of_name(node: Named, checking: FilterCheck) -> Element:
    """Return all values of a name, one entry for each kind."""
    kinds = sorted(operands.possible(node, checking))
    resolved = names.meaning(node, checking)
    return tuple(_of_kind(resolved, kind) for kind in kinds)


def _of_kind(resolved: KnownKey | Described, kind: Kind) -> Metadata | Property:
    if isinstance(resolved, KnownKey):
        return Metadata(resolved.name, resolved.key, kind, resolved.many)
    return Property(resolved.name, kind)


def _item(item: Node, checking: FilterCheck) -> Element:
    """Return one value of an array. Raises InvalidFilter for a name with several values."""
    if isinstance(item, Named):
        element = _of_name(item, checking)
    else:
        [kind] = operands.possible(item, checking) or [None]
        if kind is None:
            raise mismatch([item], [frozenset()], checking)
        element = (operands.value(item, kind, checking),)
    if any(operands.is_many(leaf) for value in element for leaf in operands.names_within(value)):
        message = "a name of several values is an array itself: it stands without brackets"
        raise meaningless(item, checking.source, message)
    return element


def _refuse_long(node: Node, side: Sequence[Element], checking: FilterCheck) -> None:
    if sum(not isinstance(element[0], Constant) for element in side) > MOST_CALCULATED:
        message = f"at most {MOST_CALCULATED} names or calculations can stand in two arrays"
        raise meaningless(node, checking.source, message)


def _refuse_impossible(left: Named | Listed, right: Named | Listed, checking: FilterCheck) -> None:
    """Raise ImpossibleComparison for a value that no value of a name can equal."""
    if isinstance(left, Listed) and isinstance(right, Listed):
        return
    for pair in product(_compared(left, checking), _compared(right, checking)):
        operands.common(pair, checking)


def _compared(array: Named | Listed, checking: FilterCheck) -> list[Node]:
    if isinstance(array, Named):
        return [elements(array, checking)]
    return [item for item in array.items if not _is_other(item)]


def _is_other(item: Node) -> bool:
    """Check whether it is an array, geometry or interval, which no stored value equals."""
    return isinstance(item, Listed | Geometry | Interval)


def _others(array: Named | Listed) -> frozenset[Hashable]:
    items = array.items if isinstance(array, Listed) else ()
    return frozenset(_canonical(item) for item in items if _is_other(item))


def _canonical(item: Node) -> Hashable:
    """Return a value to compare items by; order and repetition in an array do not count."""
    if isinstance(item, Listed):
        return frozenset(map(_canonical, item.items))
    # to Python TRUE equals 1
    return (isinstance(item.value, bool), item) if isinstance(item, Scalar) else item


def _with_others(
    predicate: Predicate, relation: Relation, left: frozenset[Hashable], right: frozenset[Hashable]
) -> Predicate:
    """Add items that no stored value equals: they equal only items that are written alike."""
    if not left and not right:
        return predicate
    holds = ARRAYS[relation](left, right)
    if relation == "overlaps":
        return settle(Or((predicate, settle(Not(predicate))))) if holds else predicate
    return predicate if holds else settle(And((predicate, settle(Not(predicate)))))
