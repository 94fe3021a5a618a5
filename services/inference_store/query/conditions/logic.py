"""Combined conditions: all of them, one of them, none of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from sqlalchemy import ColumnElement, and_, intersect, or_, select, true, union
from sqlalchemy.sql.elements import Grouping

from inference_store.index.tables import inference
from inference_store.query.scan_range import ScanRange

from .condition import EVERYTHING, MOST_INTERSECTED, MOST_SCANS, NOTHING, Condition, Uids
from .time_received import Received

# The planner turns an EXISTS among few others into a join; more joins would take it seconds.
_MOST_JOINS = 8


def build_tests(
    parts: Sequence[Condition], scan_range: ScanRange, uid: ColumnElement[Any]
) -> list[ColumnElement[bool]]:
    """Return each condition as a test, in a form that is planned fast however many there are."""
    tests = [part.holds(scan_range, uid) for part in parts]
    if len(tests) <= _MOST_JOINS:
        return tests
    return [Grouping(test).is_(true()) for test in tests]


def split_driving(parts: Sequence[Condition]) -> tuple[list[Condition], list[Condition]]:
    """Return the conditions whose lists are intersected, as many as may be scanned, and the
    others."""
    driving: list[Condition] = []
    others: list[Condition] = []
    remaining = MOST_SCANS
    for part in parts:
        is_driving = 0 < part.scans <= remaining and len(driving) < MOST_INTERSECTED
        (driving if is_driving else others).append(part)
        remaining -= part.scans if is_driving else 0
    return driving, others


@dataclass(frozen=True, slots=True)
class All:
    """All of the conditions hold. Conditions on time narrow the range of the others."""

    parts: tuple[Condition, ...]
    kind: str = "all"
    # computed once: they are read often, and computing them visits all parts recursively
    unique: bool = field(init=False, compare=False, repr=False)
    scans: int = field(init=False, compare=False, repr=False)
    _spans: list[Received] = field(init=False, compare=False, repr=False)
    _leading: list[Condition] = field(init=False, compare=False, repr=False)
    _tested: list[Condition] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        spans = [part for part in self.parts if isinstance(part, Received)]
        driving, others = split_driving(
            [part for part in self.parts if not isinstance(part, Received)]
        )
        fields = {
            "_spans": spans,
            "_leading": driving,
            "_tested": others,
            "scans": sum(part.scans for part in driving) or min(1, len(spans)),
            "unique": len(driving) != 1 or driving[0].unique,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def uids(self, scan_range: ScanRange) -> Uids | None:
        if not self.scans:
            return None
        here = reduce(lambda narrowed, span: span.narrow(narrowed), self._spans, scan_range)
        if not self._leading:
            rows = select(inference.c.uid).where(here.of(inference))
            return rows.where(*build_tests(self._tested, here, inference.c.uid))
        lists = [uids for part in self._leading if (uids := part.uids(here)) is not None]
        matches = (intersect(*lists) if len(lists) > 1 else lists[0]).subquery()
        [uid] = matches.c
        return select(uid).where(*build_tests(self._tested, here, uid))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return and_(*build_tests(self.parts, scan_range, uid))


@dataclass(frozen=True, slots=True)
class Either:
    """One of the conditions holds."""

    parts: tuple[Condition, ...]
    kind: str = "either"
    unique: bool = True
    scans: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        scans = [part.scans for part in self.parts]
        is_driven = 0 not in scans and sum(scans) <= MOST_SCANS
        object.__setattr__(self, "scans", sum(scans) if is_driven else 0)

    def uids(self, scan_range: ScanRange) -> Uids | None:
        if not self.scans:
            return None
        return union(*(uids for part in self.parts if (uids := part.uids(scan_range)) is not None))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        # The planner flattens AND in OR in AND: its time doubles every few levels.
        return or_(
            *(
                Grouping(part.holds(scan_range, uid)).is_(true())
                if isinstance(part, All)
                else part.holds(scan_range, uid)
                for part in self.parts
            )
        )


@dataclass(frozen=True, slots=True)
class Neither:
    """None of the conditions holds."""

    parts: tuple[Condition, ...]
    kind: str = "neither"
    unique: bool = True
    scans: int = 0

    def uids(self, scan_range: ScanRange) -> None:  # noqa: ARG002  (no index leads to them)
        return None

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return ~or_(*(part.holds(scan_range, uid) for part in self.parts))


def combine_all(parts: list[Condition]) -> Condition:
    """Combine conditions that must all hold, without those that change nothing."""
    conditions: list[Condition] = []
    for part in parts:
        conditions += part.parts if isinstance(part, All) else [part]
    conditions = [part for part in conditions if part != EVERYTHING]
    if NOTHING in conditions:
        return NOTHING
    return All(tuple(conditions)) if len(conditions) > 1 else (conditions or [EVERYTHING])[0]


def combine_either(parts: list[Condition]) -> Condition:
    """Combine conditions of which one must hold, without those that change nothing."""
    conditions: list[Condition] = []
    for part in parts:
        conditions += part.parts if isinstance(part, Either) else [part]
    conditions = [part for part in conditions if part != NOTHING]
    if EVERYTHING in conditions:
        return EVERYTHING
    return Either(tuple(conditions)) if len(conditions) > 1 else (conditions or [NOTHING])[0]
