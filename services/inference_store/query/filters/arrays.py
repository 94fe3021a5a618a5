"""The array functions: most of all of a name's values, against a set that is written out."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from inference_store.inference.json_text import is_number
from inference_store.query.cql2.tree import Instant, Listed, Named, Operation, Scalar
from inference_store.query.properties import Property as Described

from . import names, operands, sets
from .checking import Checking
from .known import KnownKey
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


def check_array_function(node: Operation, checking: Checking) -> Predicate:
    """The relation of two sets. Raises InvalidFilter, ImpossibleComparison."""
    operands.refuse_inside(node, checking)
    relation = _relation(node)
    match node.args:
        case (Named() as of, Listed() as items) if _is_written(items):
            return _of_name(of, relation, items, checking)
        case (Listed() as items, Named() as of) if _is_written(items):
            return _of_name(of, _FLIPPED[relation], items, checking)
        case (Named() | Listed() as one, Named() | Listed() as other):
            return sets.check_array_relation(one, relation, other, checking)
    message = f"{node.op.upper()} takes two arrays: names, or values in brackets: ('a', 'b')"
    raise meaningless(node, checking.source, message)


def _is_written(items: Listed) -> bool:
    return all(isinstance(each, Scalar | Instant) for each in items.items)


def _relation(node: Operation) -> Relation:
    relations: dict[str, Relation] = {f"a_{name}": name for name in _FLIPPED}
    return relations[node.op.lower()]


def _of_name(of: Named, relation: Relation, items: Listed, checking: Checking) -> Predicate:
    of = sets.elements(of, checking)
    found = names.meaning(of, checking)
    constants = _constants(items, checking)
    kinds = tuple(dict.fromkeys(each.kind for each in constants)) or _any_kind(of, checking)
    for constant, item in zip(constants, items.items, strict=True):
        kind = constant.kind
        if kind not in operands.possible(of, checking):
            raise mismatch([of, item], [operands.possible(of, checking), _one(kind)], checking)
    sets.refuse_one_value(of, checking)
    if relation in ("equals", "containedby"):
        # A value of a kind that is not among the constants is none of them.
        kinds += tuple(sorted(operands.possible(of, checking) - {*kinds}))
    values = {kind: _values(found, kind, checking) for kind in kinds}
    if len(values) == 1:
        return Array(relation, values[kinds[0]], _of_kind(constants, kinds[0]))
    return _of_several_kinds(relation, values, constants)


def _one(kind: Kind) -> frozenset[Kind]:
    return frozenset({kind})


def _any_kind(of: Named, checking: Checking) -> tuple[Kind, ...]:
    """Of an empty array any kind will do: the one of most values."""
    return (operands.common([of], checking),)


def _values(found: KnownKey | Described, kind: Kind, checking: Checking) -> Metadata | Property:
    if isinstance(found, KnownKey):
        checking.warn_of_others(found, kind)
        return Metadata(found.name, found.key, kind, found.many)
    return Property(found.name, kind)


def _of_kind(constants: Sequence[Constant], kind: Kind) -> tuple[Constant, ...]:
    return tuple(dict.fromkeys(each for each in constants if each.kind == kind))


def _of_several_kinds(
    relation: Relation, values: Mapping[Kind, Metadata | Property], constants: Sequence[Constant]
) -> Predicate:
    """A set of several kinds is a set of each; NULL only where there is no value of any."""
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
    """A stored text that spells a number is stored as that number too."""
    for each in constants:
        if isinstance(each.value, str) and is_number(each.value):
            try:
                yield Constant("number", Decimal(each.value))
            except InvalidOperation:  # beyond all that is stored as a number
                continue


def _definite(part: Array) -> Predicate:
    """False rather than NULL."""
    return And((part, Not(Unknown(part))))


def _constants(items: Listed, checking: Checking) -> tuple[Constant, ...]:
    found = (operands.value(each, "string", checking) for each in items.items)
    return tuple(each for each in found if isinstance(each, Constant))
