"""A condition on inferences in SQL: as a list of uids, and as a test of one uid.

A list comes from an index and can drive a query; a test is applied to inferences that were found
in another way. Every condition has a test, but not every one has a list. Neither is ever NULL: a
condition says that a predicate is true, or that it is false.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias, cast
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    false,
    intersect,
    literal_column,
    or_,
    select,
    true,
    union,
)
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping, True_
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.tables import inference
from inference_store.inference.events.event import HIGHEST as LATEST
from inference_store.inference.events.event import uid_floor
from inference_store.query.deadline import HIGHEST, LOWEST, ScanRange, bind_one, test_unmarked
from inference_store.query.filters.typed import Comparison

Test: TypeAlias = ColumnElement[bool]
Uids: TypeAlias = Select[Any] | CompoundSelect[Any]
MOST_SCANS = 32
"""Index scans that one list may take; a condition that needs more has none, and is tested."""
MOST_INTERSECTED = 8
"""Lists that are intersected; further conditions test the remaining inferences."""


class Condition:
    """One condition.

    `holds` may be given the uid of a row of `inference`: then it tests that row.
    """

    __slots__ = ()

    @property
    def kind(self) -> str:
        """Its name in metrics: one of a short list."""
        raise NotImplementedError

    @property
    def unique(self) -> bool:
        """Check whether its list names each inference once."""
        return True

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: no index can drive it."""
        return 0

    def uids(self, scan_range: ScanRange) -> Uids:
        """Select the inferences that satisfy it, if an index finds them."""
        raise NotImplementedError

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Test whether the inference with this uid, which is in the range, satisfies it."""
        raise NotImplementedError


def exists(froms: Sequence[FromClause], *where: Test, one_by_one: bool = False) -> Test:
    """Test whether there is such a row; every other table that is named belongs to an outer query.

    `one_by_one`: test each inference separately, whatever Postgres would prefer.
    """
    rows: Select[Any] = select(literal_column("1")).select_from(*froms).where(*where)
    if one_by_one:
        rows = rows.offset(literal_column("0"))
    return rows.correlate_except(*froms).exists()


def only_true(test: Test) -> Test:
    """Return the test for a place where NULL counts as false, as in WHERE: no index serves `… IS
    TRUE`."""
    match test:
        case BooleanClauseList(operator=operators.and_ | operators.or_):
            joined = and_ if test.operator is operators.and_ else or_
            return joined(*(only_true(cast(Test, clause)) for clause in test.clauses))
        case BinaryExpression(operator=operators.is_, right=True_()):
            return only_true(test.left)
        case Grouping():
            return only_true(cast(Test, test.element))
    return test


def row_at_hand(uid: ColumnElement[Any] | None, table: Table) -> FromClause | None:
    """Return the row of the table, or of an alias of it, that the uid was taken from."""
    source = getattr(uid, "table", None)
    return source if source is table or getattr(source, "element", None) is table else None


_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Received(Condition):
    """The uid is in [lo, hi)."""

    lo: UUID = LOWEST
    hi: UUID = HIGHEST
    kind: str = "time"
    scans: int = 1

    def narrow(self, scan_range: ScanRange) -> ScanRange:
        """Return the part of the range that is in it."""
        return scan_range.clip(self.lo, self.hi)

    def uids(self, scan_range: ScanRange) -> Select[Any]:
        return select(inference.c.uid).where(self.narrow(scan_range).of(inference))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        kind = UUID_TYPE(as_uuid=True)
        return and_(uid >= bind_one(self.lo, kind), uid < bind_one(self.hi, kind))


def find_time_ranges(op: Comparison, at: datetime) -> list[Received]:
    """Return the ranges in which the comparison of `received_at` holds."""
    begins = uid_floor(at)
    # the uid after all those of the instant
    ends = HIGHEST if at >= LATEST else uid_floor(at + _MICROSECOND)
    ranges: dict[Comparison, list[Received]] = {
        "=": [Received(begins, ends)],
        "<>": [Received(hi=begins), Received(lo=ends)],
        "<": [Received(hi=begins)],
        "<=": [Received(hi=ends)],
        ">": [Received(lo=ends)],
        ">=": [Received(lo=begins)],
    }
    return ranges[op]


def find_uid_range(text: str) -> list[Received]:
    """Return the range of the uid with this spelling; no range if it is not a uid."""
    try:
        uid = UUID(text)
    except ValueError:
        return []
    return [Received(uid, UUID(int=uid.int + 1))] if str(uid) == text and uid != HIGHEST else []


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
    driving, others, remaining = list[Condition](), list[Condition](), MOST_SCANS
    for part in parts:
        is_driving = 0 < part.scans <= remaining and len(driving) < MOST_INTERSECTED
        (driving if is_driving else others).append(part)
        remaining -= part.scans if is_driving else 0
    return driving, others


def match_all(
    parts: Sequence[Condition], scan_range: ScanRange, *, unmarked: bool = False
) -> tuple[Select[Any], bool]:
    """Select the inferences that satisfy all; return also whether each is selected once.

    Several lists are intersected. `unmarked`: without those that are being erased.
    """
    driving, others = split_driving(parts)
    lists = [part.uids(scan_range) for part in driving]
    if lists:
        found = (intersect(*lists) if len(lists) > 1 else lists[0]).subquery()
        [uid] = found.c
        matches = select(uid)
    else:
        uid = inference.c.uid
        matches = select(uid).where(scan_range.of(inference))
    tests = build_tests(others, scan_range, uid)
    if unmarked:
        tests.append(test_unmarked(scan_range, uid))
    return matches.where(*tests), len(driving) != 1 or driving[0].unique


@dataclass(frozen=True, slots=True)
class All(Condition):
    """All of the conditions hold. Conditions on time narrow the range of the others."""

    parts: tuple[Condition, ...]
    kind: str = "all"
    # computed once: they are read often, and computing them visits all parts recursively
    unique: bool = field(init=False, compare=False, repr=False)
    scans: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        driving, _ = split_driving(self._timeless)
        some_time = len(self._timeless) < len(self.parts)
        object.__setattr__(self, "scans", sum(part.scans for part in driving) or int(some_time))
        object.__setattr__(self, "unique", len(driving) != 1 or driving[0].unique)

    @property
    def _timeless(self) -> list[Condition]:
        return [part for part in self.parts if not isinstance(part, Received)]

    def uids(self, scan_range: ScanRange) -> Uids:
        for part in self.parts:
            scan_range = part.narrow(scan_range) if isinstance(part, Received) else scan_range
        return match_all(self._timeless, scan_range)[0]

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return and_(true(), *build_tests(self.parts, scan_range, uid))


@dataclass(frozen=True, slots=True)
class Either(Condition):
    """One of the conditions holds."""

    parts: tuple[Condition, ...]
    kind: str = "either"
    scans: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        scans = [part.scans for part in self.parts]
        is_driven = 0 not in scans and sum(scans) <= MOST_SCANS
        object.__setattr__(self, "scans", sum(scans) if is_driven else 0)

    def uids(self, scan_range: ScanRange) -> Uids:
        return union(*(part.uids(scan_range) for part in self.parts))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        tests = [(part, part.holds(scan_range, uid)) for part in self.parts]
        # The planner flattens AND in OR in AND: its time doubles every few levels.
        tests_apart = (
            Grouping(test).is_(true()) if isinstance(part, All) else test for part, test in tests
        )
        return or_(false(), *tests_apart)


NOTHING, EVERYTHING = Either(()), All(())


@dataclass(frozen=True, slots=True)
class Negated(Condition):
    """The condition does not hold."""

    of: Condition
    kind: str = "not"

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        return ~self.of.holds(scan_range, uid)


def combine_all(parts: Sequence[Condition]) -> Condition:
    """Combine conditions that must all hold, without those that change nothing."""
    return _combine(parts, All, NOTHING)


def combine_either(parts: Sequence[Condition]) -> Condition:
    """Combine conditions of which one must hold, without those that change nothing."""
    return _combine(parts, Either, EVERYTHING)


def _combine(
    parts: Sequence[Condition], joined: type[All | Either], deciding: Condition
) -> Condition:
    """Combine them to one condition without nesting; one that is `deciding` decides alone."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, joined) else (part,))]
    if deciding in flat:
        return deciding
    return flat[0] if len(flat) == 1 else joined(tuple(flat))
