"""Two sets of any kind: of names, and of arrays that names and calculations stand in."""

from collections.abc import Hashable, Sequence
from itertools import product
from typing import Final, Literal, TypeAlias

from inference_store.query.cql2.tree import Geometry, Interval, Listed, Named, Node, Scalar
from inference_store.query.properties import Property as Described

from . import names, operands
from .checking import Checking
from .evaluate import ARRAYS
from .known import KnownKey
from .mismatches import mismatch
from .refusals import meaningless
from .settled import settled
from .typed import And, Constant, Element, Kind, Metadata, Not, Or, Predicate, Property, Sets

Relation: TypeAlias = Literal["equals", "contains", "containedby", "overlaps"]
MOST_CALCULATED: Final = 8
"""What is not written out in the two arrays."""


def check_array_relation(
    one: Named | Listed, relation: Relation, other: Named | Listed, checking: Checking
) -> Predicate:
    """The relation of the two. Raises InvalidFilter, ImpossibleComparison."""
    for of, against in ((one, other), (other, one)):
        if isinstance(of, Named) and isinstance(against, Listed):
            refuse_one_value(elements(of, checking), checking)
    sides = [_side(each, checking) for each in (one, other)]
    _refuse_long(one, [element for side in sides for element in side], checking)
    _refuse_impossible(one, other, checking)
    found = settled(Sets(relation, tuple(sides[0]), tuple(sides[1])))
    return _with_others(found, relation, _others(one), _others(other))


def elements(named: Named, checking: Checking) -> Named:
    """The name of a JSON array means its elements."""
    elements = f"{named.name}[]"
    if checking.known.keys.get(names.key_of(Named(elements))) is None:
        return named
    whole = checking.known.keys.get(names.key_of(named))
    return named if whole is not None and whole.rows else Named(elements, at=named.at)


def refuse_one_value(of: Named, checking: Checking) -> None:
    """Raises InvalidFilter; of a key that nobody has seen it is not known."""
    found = names.meaning(of, checking)
    if found.many or (isinstance(found, KnownKey) and not found.types):
        return
    known = (f'"{of.name}[]"',) if f"{names.key_of(of)}[]" in checking.known.keys else ()
    message = f"{of.name!r} has one value: compare it by = or IN"
    raise meaningless(of, checking.source, message, known)


def _side(array: Named | Listed, checking: Checking) -> list[Element]:
    if isinstance(array, Named):
        return [_of_name(elements(array, checking), checking)]
    return [_item(each, checking) for each in array.items if not _is_other(each)]


def _of_name(named: Named, checking: Checking) -> Element:
    """All its values, each as the kind that it is."""
    kinds = sorted(operands.possible(named, checking))
    found = names.meaning(named, checking)
    return tuple(_of_kind(found, kind) for kind in kinds)


def _of_kind(found: KnownKey | Described, kind: Kind) -> Metadata | Property:
    if isinstance(found, KnownKey):
        return Metadata(found.name, found.key, kind, found.many)
    return Property(found.name, kind)


def _item(item: Node, checking: Checking) -> Element:
    """One value of an array. Raises InvalidFilter for a name that has several."""
    if isinstance(item, Named):
        found = _of_name(item, checking)
    else:
        [kind] = operands.possible(item, checking) or [None]
        if kind is None:
            raise mismatch([item], [frozenset()], checking)
        found = (operands.value(item, kind, checking),)
    if any(operands.is_many(leaf) for each in found for leaf in operands.names_within(each)):
        message = "a name of several values is an array itself: it stands without brackets"
        raise meaningless(item, checking.source, message)
    return found


def _refuse_long(node: Node, found: Sequence[Element], checking: Checking) -> None:
    if sum(not isinstance(element[0], Constant) for element in found) > MOST_CALCULATED:
        message = f"at most {MOST_CALCULATED} names or calculations can stand in two arrays"
        raise meaningless(node, checking.source, message)


def _refuse_impossible(one: Named | Listed, other: Named | Listed, checking: Checking) -> None:
    """Raises ImpossibleComparison for a value that no value of a name is equal to."""
    if isinstance(one, Listed) and isinstance(other, Listed):
        return
    for pair in product(_compared(one, checking), _compared(other, checking)):
        operands.common(pair, checking)


def _compared(array: Named | Listed, checking: Checking) -> list[Node]:
    if isinstance(array, Named):
        return [elements(array, checking)]
    return [each for each in array.items if not _is_other(each)]


def _is_other(item: Node) -> bool:
    """An array, place or interval, which no value that is stored is equal to."""
    return isinstance(item, Listed | Geometry | Interval)


def _others(array: Named | Listed) -> frozenset[Hashable]:
    items = array.items if isinstance(array, Listed) else ()
    return frozenset(_canonical(each) for each in items if _is_other(each))


def _canonical(item: Node) -> Hashable:
    """Equal for equal ones; of an array order and repetition do not count."""
    if isinstance(item, Listed):
        return frozenset(map(_canonical, item.items))
    # to Python TRUE equals 1
    return (isinstance(item.value, bool), item) if isinstance(item, Scalar) else item


def _with_others(
    found: Predicate, relation: Relation, one: frozenset[Hashable], other: frozenset[Hashable]
) -> Predicate:
    """What is no stored value is equal to what is written alike, and to nothing else."""
    if not one and not other:
        return found
    held = ARRAYS[relation](one, other)
    if relation == "overlaps":
        return settled(Or((found, settled(Not(found))))) if held else found
    return found if held else settled(And((found, settled(Not(found)))))
