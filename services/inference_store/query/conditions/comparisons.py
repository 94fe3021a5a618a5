"""Comparisons of values, and conditions on predictions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, func, select

from inference_store.index.tables import inference, prediction
from inference_store.query.deadline import ScanRange
from inference_store.query.filters import typed
from inference_store.query.filters.typed import (
    COMPARISONS,
    MIRRORED,
    OPPOSITE,
    Among,
    Between,
    Column,
    Compared,
    Comparison,
    Constant,
    Counted,
    Distance,
    Like,
    Metadata,
    Outside,
    Predicate,
    Property,
    Value,
    is_many,
    leaves_of,
)

from .combination import Combination, Found, Names, is_label
from .condition import EVERYTHING, Condition, Negated, Uids, combine_all, only_true
from .sides import SQL_COMPARISONS, Side, build_side

Compares: TypeAlias = Compared | Between | Among | Outside | Like
# Properties whose index finds the values.
_INDEXED: Final = frozenset({"inference_id", "data_hash"})


def list_values(predicate: Compares) -> tuple[Value, ...]:
    """Return the compared values."""
    match predicate:
        case Compared():
            return predicate.left, predicate.right
        case Between():
            return predicate.of, predicate.low, predicate.high
        case _:
            return (predicate.of,)


def put_constant_right(predicate: Any) -> Any:
    """Return a comparison with a constant on the right; any other predicate as it is."""
    if isinstance(predicate, Compared) and isinstance(predicate.left, Constant):
        return Compared(MIRRORED[predicate.op], predicate.right, predicate.left)
    return predicate


Which: TypeAlias = Literal["true", "false", "there"]
"""What the tests find: a combination of values that satisfies the comparison, the only one, which
does not, or any."""


def compare(predicate: Compares, names: Names, when: bool) -> Condition:
    """Compile compared values: the comparison is true, or (`when` False) false."""
    if when:
        return _found(predicate, names, "true")
    if any(map(is_many, _leaves_in(predicate))):
        hit = _found(predicate, names, "true")
        return combine_all([_found(predicate, names, "there"), Negated(hit)])
    match predicate:
        case Compared(op, left, right):
            return _found(Compared(OPPOSITE[op], left, right), names, "true")
        case Outside(of, items):
            return _found(Among(of, items), names, "true")
    return _found(predicate, names, "false")


def _leaves_in(predicate: Compares) -> list[Value]:
    return [leaf for value in list_values(predicate) for leaf in leaves_of(value)]


def _found(predicate: Compares, names: Names, which: Which) -> Found:
    first, *others = list_values(predicate)
    leaves = _leaves_in(predicate)
    own = [leaf for leaf in leaves if not isinstance(leaf, Constant)]
    is_equality = which == "true" and isinstance(predicate, Compared) and predicate.op == "="
    constants = all(isinstance(other, Constant) for other in others)
    alone = constants and isinstance(first, Metadata)
    is_indexed = constants and isinstance(first, Property) and first.name in _INDEXED
    scans = sum(2 if _is_ids(leaf) else 1 for leaf in own if _can_drive(leaf))
    return Found(
        (predicate, which),
        names,
        partial(_test, predicate, which),
        kind=_kind(own[0]) if own else "property",
        scans=scans or int(is_indexed),
        # of several values only one equals a constant, unless they are folded
        unique=not any(map(is_many, leaves)) or (alone and is_equality),
        by_value=alone and not is_equality,
        # Postgres would hash all values of two names and, if it expects few in a span of time, join
        # each row with each other one. For the coordinates of a distance its estimates are good.
        one_by_one=sum(not isinstance(leaf, Distance) for leaf in own) > 1,
    )


def _test(predicate: Compares, which: Which, rows: Combination) -> Sequence[ColumnElement[bool]]:
    sides = _build_sides(list_values(predicate), rows)
    there = [side.sql.is_not(None) for side in sides if side.nullable]
    if which == "there" or predicate == Outside(list_values(predicate)[0], ()):
        return there
    hit = _hit(predicate, sides)
    # without a value it is unknown, even if one of two bounds alone is enough to make it false
    return [*there, ~and_(*hit)] if which == "false" else hit


def _hit(predicate: Compares, sides: Sequence[Side]) -> Sequence[ColumnElement[bool]]:
    first = sides[0]
    match predicate:
        case Compared(op, _, right):
            return [compare_sides(op, first, right, sides[1])]
        case Between(_, low, high):
            above = compare_sides(">=", first, low, sides[1])
            return [above, compare_sides("<=", first, high, sides[2])]
        case Among(_, items):
            return [first.among(items)]
        case Outside(_, items):
            return [~first.among(items)]
        case Like(_, pattern):
            return [first.like(pattern)]


def _build_sides(values: Sequence[Value], rows: Combination) -> list[Side]:
    """Return the sides in order. Rows that can drive are added first: the others join them."""
    order = sorted(range(len(values)), key=lambda n: not any(map(_can_drive, leaves_of(values[n]))))
    sides = {n: build_side(values[n], rows) for n in order}
    return [sides[n] for n in range(len(values))]


def compare_sides(op: Comparison, left: Side, right: Value, side: Side) -> ColumnElement[bool]:
    """Compare two sides, one of which may be a constant."""
    if isinstance(right, Constant):
        return left.against(op, right)
    return SQL_COMPARISONS[op](left.sql, side.sql)


def _is_ids(leaf: Value) -> bool:
    return isinstance(leaf, Property) and leaf.name == "inference_ids"


def _can_drive(leaf: Value) -> bool:
    return isinstance(leaf, (Metadata, Distance)) or _is_ids(leaf)


def _kind(leaf: Value) -> str:
    match leaf:
        case Metadata():
            return "metadata"
        case Column() | Counted():
            return "prediction"
        case Distance():
            return "place"
        case Property(name) if name in {"inference_id", "inference_ids", "uid"}:
            return "id"
        case _:
            return "property"


def compile_one(condition: Predicate | None, names: Names) -> Condition:
    """Compile a condition on one prediction."""
    return EVERYTHING if condition is None else names.condition_of(condition)


def names_labels(condition: Predicate | None) -> bool:
    """Check whether only certain labels can satisfy it: the index begins with the label."""
    match condition:
        case typed.Compared("=", left, right):
            sides = (left, right), (right, left)
            return any(is_label(a) and isinstance(b, typed.Constant) for a, b in sides)
        case typed.Among():
            return is_label(condition.of)
        case typed.And():
            return any(map(names_labels, condition.parts))
        case typed.Or():
            return all(map(names_labels, condition.parts))
        case _:
            return False


def find_predicted(condition: Predicate | None, names: Names, when: bool) -> Condition:
    """Compile that some prediction satisfies the condition, or (`when` False) none does and all
    are known."""
    some = Found(
        (typed.Predicted(condition), True),
        names,
        partial(_test_prediction, condition),
        kind="prediction",
        scans=int(names_labels(condition)),
        unique=False,
    )
    if when:
        return some
    are_known = typed.Outside(typed.Property("prediction_count", "number"), ())
    return combine_all([_found(are_known, names, "true"), Negated(some)])


def _test_prediction(
    condition: Predicate | None, rows: Combination
) -> Iterator[ColumnElement[bool]]:
    row = prediction.alias()
    rows.take(row, rows.scan_range.of(row))
    yield compile_one(condition, rows.names).holds(rows.scan_range, row.c.uid)


def compile_wanted(predicate: Predicate, names: Names) -> Condition | None:
    """Compile that one prediction satisfies a condition on predictions that the predicate wants
    satisfied; None: it wants none."""
    wanted = tuple(_find_wanted(predicate))
    return names.condition_of(typed.Or(wanted)) if wanted else None


def _find_wanted(predicate: Predicate, *, when: bool = True) -> Iterator[Predicate]:
    match predicate:
        case typed.And(parts) | typed.Or(parts):
            for part in parts:
                yield from _find_wanted(part, when=when)
        case typed.Not(of):
            yield from _find_wanted(of, when=not when)
        case typed.Predicted(condition) if when and condition is not None:
            yield condition
        case Among(typed.PredicateValue(of), (Constant(_, bool() as truth),)):
            yield from _find_wanted(of, when=truth is when)
        case Compared() | Between() | Among() | Outside() if when:
            for leaf in _leaves_in(predicate):
                if isinstance(leaf, Counted) and leaf.condition is not None:
                    yield leaf.condition


def _rows(condition: Predicate | None, names: Names, scan_range: ScanRange) -> Select[Any]:
    tests = only_true(compile_one(condition, names).holds(scan_range, prediction.c.uid))
    return select(prediction.c.uid).where(scan_range.of(prediction), tests)


@dataclass(frozen=True, slots=True)
class Driven(Condition):
    """A condition with a list that is not made of the rows that are compared."""

    condition: Condition
    select: Callable[[ScanRange], Uids] = field(compare=False, repr=False)
    kind: str
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        return self.select(scan_range)

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.condition.holds(scan_range, uid)


def lead_by_predictions(predicate: Compares, names: Names, when: bool) -> Condition | None:
    """Compile the number of predictions that satisfy a condition, if it is at least one and they
    are found by their labels."""
    match predicate:
        case Compared(op, Counted(condition), Constant() as number) if names_labels(condition):
            op = op if when else OPPOSITE[op]
        case _:
            return None
    if COMPARISONS[op](Decimal(0), number.value):
        return None

    def select_counted(scan_range: ScanRange) -> Uids:
        grouped = _rows(condition, names, scan_range).group_by(prediction.c.uid)
        return grouped.having(SQL_COMPARISONS[op](func.count(), names.constant(number)))

    return Driven(compare(predicate, names, when), select_counted, "prediction")


def lead_by_first(
    parts: Sequence[Predicate], names: Names
) -> tuple[list[Condition], list[Predicate]]:
    """Compile the first prediction's label, with all conditions on its score: the index of the
    predictions has both. Return also the parts that are left."""
    turned = [put_constant_right(part) for part in parts]
    pairs = [(part, of) for part in turned if (of := _of_first(part)) is not None]
    labels = [pair for pair in pairs if names_labels(pair[1])]
    if not labels:
        return [], turned
    taken = [labels[0], *(pair for pair in pairs if not names_labels(pair[1]))]
    condition = combine_all([compare(part, names, when=True) for part, _ in taken])

    def select_first(scan_range: ScanRange) -> Uids:
        some = _rows(typed.And(tuple(of for _, of in taken)), names, scan_range)
        here, uid = scan_range.of(inference), inference.c.uid
        in_some = uid.in_(some.where(prediction.c.rank == 1))
        return select(uid).where(here, in_some, condition.holds(scan_range, uid))

    led = Driven(condition, select_first, "property")
    return [led], [part for part in turned if all(part is not one for one, _ in taken)]


def _of_first(part: Predicate) -> Predicate | None:
    """Return a condition on the first prediction's label or score as one on any prediction's."""
    label, score = Column("label", "string"), Column("score", "number")
    match part:
        case Compared("=", Property("top_label"), Constant() as to):
            return Compared("=", label, to)
        case Among(Property("top_label"), items):
            return Among(label, items)
        case Compared(op, Property("top_score"), Constant() as to):
            return Compared(op, score, to)
        case Between(Property("top_score"), Constant() as low, Constant() as high):
            return Between(score, low, high)
    return None
