"""A condition on inferences in SQL: as a list of uids, and as a test of one uid.

A list comes from an index and can drive a query; a test is applied to inferences that were found
in another way. Every condition has a test, but not every one has a list. Neither is ever NULL: a
condition says that a predicate is true, or that it is false.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    false,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BinaryExpression, BooleanClauseList, Grouping, True_
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.tables import inference
from inference_store.query.scan_range import ScanRange

Test: TypeAlias = ColumnElement[bool]
Uids: TypeAlias = Select[Any] | CompoundSelect[Any]
MOST_SCANS = 32
"""Index scans that one list may take; a condition that needs more has none, and is tested."""
MOST_INTERSECTED = 8
"""Lists that are intersected; further conditions test the remaining inferences."""


class Condition(Protocol):
    """One condition.

    `holds` may be given the uid of a row of `inference`: then it tests that row.
    """

    @property
    def kind(self) -> str:
        """Its name in metrics: one of a short list."""

    @property
    def unique(self) -> bool:
        """Check whether its list names each inference once."""

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: no index can drive it."""

    def uids(self, scan_range: ScanRange) -> Uids | None:
        """Select the inferences that satisfy it; None: no index finds them."""

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        """Test whether the inference with this uid, which is in the range, satisfies it."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """No inference satisfies it."""

    kind: str = "nothing"
    unique: bool = True
    scans: int = 1

    def uids(self, scan_range: ScanRange) -> Uids:
        return select(inference.c.uid).where(scan_range.of(inference), false())

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        return false()


@dataclass(frozen=True, slots=True)
class Everything:
    """Every inference satisfies it."""

    kind: str = "everything"
    unique: bool = True
    scans: int = 0

    def uids(self, scan_range: ScanRange) -> None:  # noqa: ARG002
        return None

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:  # noqa: ARG002
        return true()


NOTHING, EVERYTHING = Nothing(), Everything()


def exists(
    froms: Sequence[FromClause], *where: ColumnElement[bool], one_by_one: bool = False
) -> ColumnElement[bool]:
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
        case BooleanClauseList(operator=operators.and_):
            return and_(*(only_true(cast(Test, clause)) for clause in test.clauses))
        case BooleanClauseList(operator=operators.or_):
            return or_(*(only_true(cast(Test, clause)) for clause in test.clauses))
        case BinaryExpression(operator=operators.is_, right=True_()):
            return only_true(test.left)
        case Grouping():
            return only_true(cast(Test, test.element))
        case _:
            return test


def row_at_hand(uid: ColumnElement[Any] | None, table: Table) -> FromClause | None:
    """Return the row of the table, or of an alias of it, that the uid was taken from."""
    source = getattr(uid, "table", None)
    return source if source is table or getattr(source, "element", None) is table else None
