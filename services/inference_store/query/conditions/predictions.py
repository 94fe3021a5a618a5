"""Conditions on predictions: one satisfies a condition, how many do, the label of the first."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, select

from inference_store.index.tables import inference, prediction
from inference_store.query.filters import typed
from inference_store.query.filters.typed import Predicate
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .comparisons import Comparing, list_values
from .condition import EVERYTHING, Condition, Uids, exists, only_true
from .names import Names, is_label
from .sides import COMPARISONS


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
class Predicts:
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
class Counts:
    """The number of predictions, at least one, that satisfy a condition that names labels."""

    compared: Comparing
    counted: typed.Counted
    op: typed.Comparison
    number: typed.Constant
    kind: str = "prediction"
    unique: bool = True
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        names = self.compared.names
        grouped = _rows(self.counted.condition, names, scan_range).group_by(prediction.c.uid)
        return grouped.having(COMPARISONS[self.op](func.count(), names.constant(self.number)))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return self.compared.holds(scan_range, uid)


@dataclass(frozen=True, slots=True)
class TopLabelled:
    """The first prediction's label, and perhaps its score: found by the predictions of that label
    and score."""

    compared: Comparing
    scores: tuple[Comparing, ...] = ()
    kind: str = "property"
    unique: bool = True
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
    """Check whether it requires a comparison of the first score with a constant."""
    if not part.when or not isinstance(part.predicate, (typed.Compared, typed.Between)):
        return False
    of, *others = list_values(part.predicate)
    constant = all(isinstance(other, typed.Constant) for other in others)
    return constant and isinstance(of, typed.Property) and of.name == "top_score"


def _of_first(predicate: Any) -> Predicate:
    """Return the same predicate on a prediction's own columns."""
    label, score = typed.Column("label", "string"), typed.Column("score", "number")
    match predicate:
        case typed.Compared(op, typed.Property(name), right):
            return typed.Compared(op, label if name == "top_label" else score, right)
        case typed.Between(_, low, high):
            return typed.Between(score, low, high)
        case typed.Among(_, items):
            return typed.Among(label, items)
    raise TypeError(f"{predicate} is no comparison of the first label or score")
