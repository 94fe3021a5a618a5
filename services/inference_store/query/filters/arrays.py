"""The array functions: usually the set of a name's values against a literal set."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from inference_store.inference.json_text import is_number
from inference_store.query.cql2.tree import Instant, Listed, Named, Operation, Scalar
from inference_store.query.properties import Property as Described

from . import names, operands, sets
from .filter_check import FilterCheck
from .known_keys import KnownKey
from .mismatches import mismatch
from .refusals import meaningless
from .sets import Relation
from .typed import (
    And,
    Array,
    Constant,
    Kind,
    Metadata,
    Not,
    Or,
    Predicate,
    Property,
    Unknown,
)

_FLIPPED: Final[Mapping[Relation, Relation]] = {
    "equals": "equals",
    "overlaps": "overlaps",
    "contains": "containedby",
    "containedby": "contains",
}


def check_array_function(node: Operation, checking: FilterCheck) -> Predicate:
    """Return the relation of two sets. Raises InvalidFilter, ImpossibleComparison."""
    operands.refuse_inside(node, checking)
    relation = _relation(node)
    match node.args:
        case (Named() as of, Listed() as items) if _is_written(items):
            return _of_name(of, relation, items, checking)
        case (Listed() as items, Named() as of) if _is_written(items):
            return _of_name(of, _FLIPPED[relation], items, checking)
        case (Named() | Listed() as left, Named() | Listed() as right):
            return sets.check_array_relation(left, relation, right, checking)
    message = f"{node.op.upper()} takes two arrays: names, or values in brackets: ('a', 'b')"
    raise meaningless(node, checking.source, message)


def _is_written(items: Listed) -> bool:
    return all(isinstance(item, Scalar | Instant) for item in items.items)


def _relation(node: Operation) -> Relation:
    relations: dict[str, Relation] = {f"a_{name}": name for name in _FLIPPED}
    return relations[node.op.lower()]


def _of_name(of: Named, relation: Relation, items: Listed, checking: FilterCheck) -> Predicate:
    of = sets.elements(of, checking)
    resolved = names.meaning(of, checking)
    constants = _constants(items, checking)
    kinds = tuple(dict.fromkeys(constant.kind for constant in constants)) or _any_kind(of, checking)
    for constant, item in zip(constants, items.items, strict=True):
        kind = constant.kind
        if kind not in operands.possible(of, checking):
            raise mismatch([of, item], [operands.possible(of, checking), _as_set(kind)], checking)
    sets.refuse_one_value(of, checking)
    if relation in ("equals", "containedby"):
        # A value of another kind than the constants is equal to none of them.
        kinds += tuple(sorted(operands.possible(of, checking) - {*kinds}))
    values = {kind: _values(resolved, kind, checking) for kind in kinds}
    if len(values) == 1:
        return Array(relation, values[kinds[0]], _of_kind(constants, kinds[0]))
    return _of_several_kinds(relation, values, constants)


def _as_set(kind: Kind) -> frozenset[Kind]:
    return frozenset({kind})


def _any_kind(of: Named, checking: FilterCheck) -> tuple[Kind, ...]:
    """Return a kind for an empty array, for which any would do: that of most values."""
    return (operands.common([of], checking),)


def _values(
    resolved: KnownKey | Described, kind: Kind, checking: FilterCheck
) -> Metadata | Property:
    if isinstance(resolved, KnownKey):
        checking.warn_of_others(resolved, kind)
        return Metadata(resolved.name, resolved.key, kind, resolved.many)
    return Property(resolved.name, kind)


def _of_kind(constants: Sequence[Constant], kind: Kind) -> tuple[Constant, ...]:
    return tuple(dict.fromkeys(constant for constant in constants if constant.kind == kind))


def _of_several_kinds(
    relation: Relation, values: Mapping[Kind, Metadata | Property], constants: Sequence[Constant]
) -> Predicate:
    """Combine the relations of each kind; NULL only if there is no value of any kind."""
    some = Or(tuple(Array("contains", of, ()) for of in values.values()))
    all_of: list[Predicate] = []
    if relation == "overlaps":
        parts = (Array(relation, of, _of_kind(constants, kind)) for kind, of in values.items())
        all_of = [Or(tuple(map(_definite, parts)))]
    if relation in ("equals", "contains"):
        needed = {kind: items for kind in values if (items := _of_kind(constants, kind))}
        all_of += [_definite(Array("contains", values[k], items)) for k, items in needed.items()]
    if relation in ("equals", "containedby"):
        also = (*constants, *_numbers_of(constants))
        every = (Array("containedby", of, _of_kind(also, kind)) for kind, of in values.items())
        all_of += [Or((part, Unknown(part))) for part in every]
    return Or((And((*all_of, some)), Not(some)))


def _numbers_of(constants: Sequence[Constant]) -> Iterator[Constant]:
    """Yield the numbers that texts spell: a stored text that spells one is stored as both."""
    for constant in constants:
        if isinstance(constant.value, str) and is_number(constant.value):
            try:
                yield Constant("number", Decimal(constant.value))
            except InvalidOperation:  # beyond all stored numbers
                continue


def _definite(part: Array) -> Predicate:
    """Return a predicate that is false if the part is NULL."""
    return And((part, Not(Unknown(part))))


def _constants(items: Listed, checking: FilterCheck) -> tuple[Constant, ...]:
    values = (operands.value(item, "string", checking) for item in items.items)
    return tuple(value for value in values if isinstance(value, Constant))
