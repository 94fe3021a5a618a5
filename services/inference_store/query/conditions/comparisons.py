"""Comparisons of values, and conditions on predictions."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, except_, func, or_, select

from inference_store.index.tables import inference, prediction
from inference_store.query.deadline import ScanRange
from inference_store.query.filters import typed
from inference_store.query.filters.typed import (
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

from .combination import Combination, Names, is_label
from .condition import EVERYTHING, Condition, Uids, exists, only_true
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


def put_constant_right(predicate: Compares) -> Compares:
    """Return the comparison with a constant on the right."""
    if isinstance(predicate, Compared) and isinstance(predicate.left, Constant):
        return Compared(MIRRORED[predicate.op], predicate.right, predicate.left)
    return predicate


@dataclass(frozen=True, slots=True)
class Comparing(Condition):
    """Compared values; the comparison is true, or (`when` False) false."""

    predicate: Compares
    when: bool
    names: Names
    leaves: tuple[Value, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        leaves = tuple(leaf for value in list_values(self.predicate) for leaf in leaves_of(value))
        object.__setattr__(self, "leaves", leaves)

    @property
    def kind(self) -> str:
        """The kind of its first value."""
        kinds = [_kind(leaf) for leaf in self.leaves if not isinstance(leaf, Constant)]
        return kinds[0] if kinds else "property"

    @property
    def many(self) -> bool:
        """Check whether an inference may have several combinations of the values."""
        return any(map(is_many, self.leaves))

    @property
    def unique(self) -> bool:
        """Check whether its list names each inference once.

        Of several values only one equals a constant, unless they are folded or compared with
        other values.
        """
        equal = isinstance(self.predicate, Compared) and self.predicate.op == "="
        by_one = equal and set(map(type, list_values(self.predicate))) == {Metadata, Constant}
        return not self.many or not self.when or by_one

    @property
    def scans(self) -> int:
        """The number of values with a table of their own, if one of them can drive."""
        if not self._leads:
            return 0
        scans = sum(2 if _is_ids(leaf) else 1 for leaf in self.leaves if _can_drive(leaf))
        return max(1, scans) * (2 if self.many and not self.when else 1)

    @property
    def _leads(self) -> bool:
        return any(map(_can_drive, self.leaves)) or self._by_index

    @property
    def _by_index(self) -> bool:
        first, *others = list_values(self.predicate)
        is_indexed = isinstance(first, Property) and first.name in _INDEXED
        return is_indexed and all(isinstance(other, Constant) for other in others)

    @property
    def by_value(self) -> bool:
        """Check whether its list is one or several ranges of an index, in order of the values."""
        first, *others = list_values(self.predicate)
        alone = isinstance(first, Metadata) and all(isinstance(other, Constant) for other in others)
        equal = self.when and isinstance(self.predicate, Compared) and self.predicate.op == "="
        return alone and not equal and (self.when or not self.many)

    def uids(self, scan_range: ScanRange) -> Uids | None:
        if not self._leads:
            return None
        if self.when or not self.many:
            return self._combinations(scan_range, hit=True)
        every = self._combinations(scan_range, hit=False)
        return except_(every, self._combinations(scan_range, hit=True))

    def _combinations(self, scan_range: ScanRange, *, hit: bool) -> Uids:
        rows = Combination(scan_range, self.names)
        if not any(map(_can_drive, self.leaves)):
            rows.take(inference, scan_range.of(inference))
        sides = self._sides(rows)
        return rows.uids(*(self._hit(sides) if hit else self._there(sides)))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        hit = self._some(scan_range, uid, hit=True)
        if self.when or not self.many:
            return hit
        return and_(self._some(scan_range, uid, hit=False), ~hit)

    def _some(
        self, scan_range: ScanRange, uid: ColumnElement[Any], *, hit: bool
    ) -> ColumnElement[bool]:
        rows = Combination(scan_range, self.names, uid)
        sides = self._sides(rows)
        tests = self._hit(sides) if hit else self._there(sides)
        return rows.exists(*tests, one_by_one=self._of_two)

    @property
    def _of_two(self) -> bool:
        """Check whether two values of an inference are compared.

        Postgres would hash all values and, if it expects few in a span of time, join each of its
        rows with each other one. For the coordinates of a distance its estimates are good.
        """
        own = [leaf for leaf in self.leaves if not isinstance(leaf, (Constant, Distance))]
        return len(own) > 1

    def _sides(self, rows: Combination) -> list[Side]:
        """Return the sides in order. Rows that can drive are added first: the others join them."""
        values = list_values(self.predicate)
        order = sorted(
            range(len(values)), key=lambda n: not any(map(_can_drive, leaves_of(values[n])))
        )
        sides = {n: build_side(values[n], rows) for n in order}
        return [sides[n] for n in range(len(values))]

    def _there(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        return (side.sql.is_not(None) for side in sides if side.nullable)

    def _hit(self, sides: list[Side]) -> Iterator[ColumnElement[bool]]:
        """Yield the comparison, or its opposite if the only combination must not satisfy it."""
        first, opposite = sides[0], not (self.when or self.many)
        match self.predicate:
            case Compared(op, _, right):
                yield compare_sides(OPPOSITE[op] if opposite else op, first, right, sides[1])
                return
            case Between(_, low, high) if opposite:
                yield from self._there(sides)
                below = compare_sides("<", first, low, sides[1])
                yield or_(below, compare_sides(">", first, high, sides[2]))
                return
            case Between(_, low, high):
                yield compare_sides(">=", first, low, sides[1])
                yield compare_sides("<=", first, high, sides[2])
                return
            case Among(_, items):
                test = first.among(items)
            case Like(_, pattern):
                test = first.like(pattern)
            case Outside(_, items):
                yield from self._there(sides)
                if not (items or opposite):
                    return
                test = ~first.among(items)
        yield ~test if opposite else test


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


@dataclass(frozen=True, slots=True)
class Predicts(Condition):
    """Some prediction satisfies the condition, or (`when` False) none does and all are known."""

    condition: Predicate | None
    when: bool
    names: Names
    kind: str = "prediction"
    unique: bool = False

    @property
    def scans(self) -> int:
        return 1 if self.when and names_labels(self.condition) else 0

    def uids(self, scan_range: ScanRange) -> Uids | None:
        return _rows(self.condition, self.names, scan_range) if self.scans else None

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        row = prediction.alias()
        is_predicted = exists(
            [row],
            scan_range.of(row),
            row.c.uid == uid,
            compile_one(self.condition, self.names).holds(scan_range, row.c.uid),
        )
        if self.when:
            return is_predicted
        rows = Combination(scan_range, self.names, uid)
        has_predictions = rows.own().c.prediction_count.is_not(None)
        return and_(rows.exists(has_predictions), ~is_predicted)


def _rows(condition: Predicate | None, names: Names, scan_range: ScanRange) -> Select[Any]:
    tests = only_true(compile_one(condition, names).holds(scan_range, prediction.c.uid))
    return select(prediction.c.uid).where(scan_range.of(prediction), tests)


@dataclass(frozen=True, slots=True)
class Counts(Condition):
    """The number of predictions, at least one, that satisfy a condition that names labels."""

    compared: Comparing
    counted: typed.Counted
    op: typed.Comparison
    number: typed.Constant
    kind: str = "prediction"
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        names = self.compared.names
        grouped = _rows(self.counted.condition, names, scan_range).group_by(prediction.c.uid)
        return grouped.having(SQL_COMPARISONS[self.op](func.count(), names.constant(self.number)))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.compared.holds(scan_range, uid)


@dataclass(frozen=True, slots=True)
class TopLabelled(Condition):
    """The first prediction's label, and perhaps its score: found by the predictions of that label
    and score."""

    compared: Comparing
    scores: tuple[Comparing, ...] = ()
    kind: str = "property"
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        names, first = self.compared.names, prediction.c.rank == 1
        its = [_of_first(comparing.predicate) for comparing in (self.compared, *self.scores)]
        some = _rows(typed.And(tuple(its)), names, scan_range).where(first)
        tests = self.holds(scan_range, inference.c.uid)
        return select(inference.c.uid).where(
            scan_range.of(inference), inference.c.uid.in_(some), tests
        )

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return and_(
            *(comparing.holds(scan_range, uid) for comparing in (self.compared, *self.scores))
        )


def merge_scores(parts: list[Condition]) -> list[Condition]:
    """Move conditions on the first score into those on the first label: the index has both."""
    tops = [part for part in parts if isinstance(part, TopLabelled)]
    scores = [part for part in parts if isinstance(part, Comparing) and _of_top_score(part)]
    if not (tops and scores):
        return parts
    top = replace(tops[0], scores=(*tops[0].scores, *scores))
    return [top, *(part for part in parts if part is not tops[0] and part not in scores)]


def _of_top_score(part: Comparing) -> bool:
    if not part.when or not isinstance(part.predicate, (typed.Compared, typed.Between)):
        return False
    of, *others = list_values(part.predicate)
    constant = all(isinstance(other, typed.Constant) for other in others)
    return constant and isinstance(of, typed.Property) and of.name == "top_score"


def _of_first(predicate: Any) -> Predicate:
    label, score = typed.Column("label", "string"), typed.Column("score", "number")
    match predicate:
        case typed.Compared(op, typed.Property(name), right):
            return typed.Compared(op, label if name == "top_label" else score, right)
        case typed.Between(_, low, high):
            return typed.Between(score, low, high)
        case typed.Among(_, items):
            return typed.Among(label, items)
    raise TypeError(f"{predicate} is no comparison of the first label or score")
