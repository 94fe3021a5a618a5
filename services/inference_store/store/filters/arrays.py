"""The array functions: the values of a name as a set, against a set that is written out."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, TypeAlias

from inference_store.store.cql2.tree import Instant, Listed, Named, Node, Operation, Scalar
from inference_store.store.json_text import is_number
from inference_store.store.properties import Property as Described

from . import names, operands
from .checking import Checking
from .known import KnownKey
from .mismatches import mismatch
from .refusals import meaningless, not_kept
from .typed import (
    And,
    Array,
    Compared,
    Constant,
    Fixed,
    Kind,
    Metadata,
    Not,
    Or,
    Property,
    Truth,
    Unknown,
)

Relation: TypeAlias = Literal["equals", "contains", "containedby", "overlaps"]
_FLIPPED: Final[Mapping[Relation, Relation]] = {
    "equals": "equals",
    "overlaps": "overlaps",
    "contains": "containedby",
    "containedby": "contains",
}


def truth_of(node: Operation, checking: Checking) -> Truth:
    """The relation of two sets. Raises InvalidFilter, ImpossibleComparison."""
    operands.refuse_inside(node, checking)
    relation = _relation(node)
    match node.args:
        case (Named() as of, Listed() as items):
            return _of_name(of, relation, items, checking)
        case (Listed() as items, Named() as of):
            return _of_name(of, _FLIPPED[relation], items, checking)
        case (Listed() as one, Listed() as other):
            return Fixed(_of_constants(one, relation, other, checking))
        case (Named() as one, Named() as other) if relation == "overlaps":
            return _shared(one, other, checking)
        case (Named(), Named()):
            message = f"{node.op.upper()} of two names is not kept"
            raise not_kept(node, checking.source, message, "array-functions")
    message = f"{node.op.upper()} takes a name and an array that is written out: ('a', 'b')"
    raise meaningless(node, checking.source, message)


def _relation(node: Operation) -> Relation:
    relations: dict[str, Relation] = {f"a_{name}": name for name in _FLIPPED}
    return relations[node.op.lower()]


def _shared(one: Named, other: Named, checking: Checking) -> Truth:
    """Some value of one equals some value of the other."""
    both = [elements(each, checking) for each in (one, other)]
    kind = operands.common(both, checking)
    left, right = operands.values(both, kind, checking)
    return Compared("=", left, right)


def elements(named: Named, checking: Checking) -> Named:
    """The name of a JSON array means its elements."""
    elements = f"{named.name}[]"
    if checking.known.keys.get(names.key_of(Named(elements))) is None:
        return named
    whole = checking.known.keys.get(names.key_of(named))
    return named if whole is not None and whole.rows else Named(elements, at=named.at)


def _of_name(of: Named, relation: Relation, items: Listed, checking: Checking) -> Truth:
    of = elements(of, checking)
    found = names.meaning(of, checking)
    constants = _constants(items, checking)
    kinds = tuple(dict.fromkeys(each.kind for each in constants)) or _any_kind(of, checking)
    for constant, item in zip(constants, items.items, strict=True):
        kind = constant.kind
        if kind not in operands.possible(of, checking):
            raise mismatch([of, item], [operands.possible(of, checking), _one(kind)], checking)
    _refuse_one_value(of, found, checking)
    if relation in ("equals", "containedby"):
        # A value of a kind that is not among the constants is none of them.
        kinds += tuple(sorted(operands.possible(of, checking) - {*kinds}))
    values = {kind: _values(found, kind, checking) for kind in kinds}
    if len(values) == 1:
        return Array(relation, values[kinds[0]], _of_kind(constants, kinds[0]))
    return _of_several_kinds(relation, values, constants)


def _refuse_one_value(of: Named, found: KnownKey | Described, checking: Checking) -> None:
    """Of a key that nobody has seen it is not known."""
    if found.many or (isinstance(found, KnownKey) and not found.types):
        return
    known = (f'"{of.name}[]"',) if f"{names.key_of(of)}[]" in checking.known.keys else ()
    message = f"{of.name!r} has one value: compare it by = or IN"
    raise meaningless(of, checking.source, message, known)


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
) -> Truth:
    """A set of several kinds is a set of each; NULL only where there is no value of any."""
    some = Or(tuple(Array("contains", of, ()) for of in values.values()))
    all_of: list[Truth] = []
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


def _definite(part: Array) -> Truth:
    """False rather than NULL."""
    return And((part, Not(Unknown(part))))


def _constants(items: Listed, checking: Checking) -> tuple[Constant, ...]:
    return tuple(_constant(each, checking) for each in items.items)


def _constant(item: Node, checking: Checking) -> Constant:
    if isinstance(item, Scalar | Instant):
        kinds = operands.possible(item, checking)
        found = operands.value(item, next(iter(kinds)), checking)
        assert isinstance(found, Constant)
        return found
    message = "an array is of texts, numbers, truth values and instants that are written out"
    raise meaningless(item, checking.source, message)


def _of_constants(one: Listed, relation: Relation, other: Listed, checking: Checking) -> bool:
    left, right = (frozenset(_constants(each, checking)) for each in (one, other))
    match relation:
        case "equals":
            return left == right
        case "contains":
            return left >= right
        case "containedby":
            return left <= right
        case _:
            return not left.isdisjoint(right)
