"""Predictions: some one that satisfies a condition, how many do, and the label of the first."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select

from inference_store.store.filters import typed
from inference_store.store.filters.typed import Truth
from inference_store.store.queries.scope import Scope
from inference_store.store.tables import inference, prediction

from .combination import Combination
from .comparisons import Comparing
from .condition import EVERYTHING, Condition, Uids, exists, only_true
from .names import Names, of_label
from .sides import COMPARISONS


def of_one(condition: Truth | None, names: Names) -> Condition:
    """The condition of one prediction."""
    from .compiled import condition_of  # noqa: PLC0415  (a condition is made of conditions)

    return EVERYTHING if condition is None else condition_of(condition, names)


def names_labels(condition: Truth | None) -> bool:
    """Whether it can only be satisfied by certain labels, which the index begins with."""
    match condition:
        case typed.Compared("=", left, right):
            sides = (left, right), (right, left)
            return any(of_label(a) and isinstance(b, typed.Constant) for a, b in sides)
        case typed.Among():
            return of_label(condition.of)
        case typed.And():
            return any(map(names_labels, condition.parts))
        case typed.Or():
            return all(map(names_labels, condition.parts))
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Predicts:
    """Some prediction satisfies the condition; or none does, of those that are known."""

    condition: Truth | None
    when: bool
    names: Names
    kind: str = "prediction"
    unique: bool = False

    @property
    def scans(self) -> int:
        return 1 if self.when and names_labels(self.condition) else 0

    def uids(self, scope: Scope) -> Uids | None:
        return _rows(self.condition, self.names, scope) if self.scans else None

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        row = prediction.alias()
        found = exists(
            [row],
            scope.of(row),
            row.c.uid == uid,
            of_one(self.condition, self.names).holds(scope, row.c.uid),
        )
        if self.when:
            return found
        rows = Combination(scope, self.names, uid)
        known = rows.own().c.prediction_count.is_not(None)
        return and_(rows.exists(known), ~found)


def _rows(condition: Truth | None, names: Names, scope: Scope) -> Select[Any]:
    tests = only_true(of_one(condition, names).holds(scope, prediction.c.uid))
    return select(prediction.c.uid).where(scope.of(prediction), tests)


@dataclass(frozen=True, slots=True)
class Counts:
    """So many predictions, at least one, satisfy a condition that names labels."""

    compared: Comparing
    counted: typed.Counted
    op: typed.Comparison
    number: typed.Constant
    kind: str = "prediction"
    unique: bool = True
    scans: int = 1

    def uids(self, scope: Scope) -> Uids:
        names = self.compared.names
        found = _rows(self.counted.condition, names, scope).group_by(prediction.c.uid)
        return found.having(COMPARISONS[self.op](func.count(), names.constant(self.number)))

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.compared.holds(scope, uid)


@dataclass(frozen=True, slots=True)
class TopLabelled:
    """The first prediction's label: found by the predictions of that label."""

    compared: Comparing
    kind: str = "property"
    unique: bool = True
    scans: int = 1

    def uids(self, scope: Scope) -> Uids:
        names = self.compared.names
        some = _rows(_as_label(self.compared.truth), names, scope).where(prediction.c.rank == 1)
        tests = self.compared.holds(scope, inference.c.uid)
        return select(inference.c.uid).where(scope.of(inference), inference.c.uid.in_(some), tests)

    def holds(self, scope: Scope, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.compared.holds(scope, uid)


def _as_label(truth: Any) -> Truth:
    label = typed.Column("label", "string")
    match truth:
        case typed.Compared(op, _, right):
            return typed.Compared(op, label, right)
        case typed.Among(_, items):
            return typed.Among(label, items)
    raise TypeError(f"{truth} is no comparison of the first label")
