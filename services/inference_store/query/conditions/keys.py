"""Conditions on a metadata key."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    or_,
    select,
    union,
    union_all,
)

from inference_store.index.tables import SIDE_TABLES, metadata_presence
from inference_store.query.deadline import ScanRange

from .combination import Names
from .condition import Condition, Uids, exists

_SENT = (*SIDE_TABLES.values(), metadata_presence)


@dataclass(frozen=True, slots=True)
class OfKey(Condition):
    """The key was sent, or (`valued`) has a value, which JSON null is not; or the opposite."""

    key: int
    names: Names
    valued: bool
    when: bool
    many: bool = True
    """Whether an inference may have several rows of the key in one table."""
    kind: str = "metadata"

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: inferences without the key are in no index."""
        return len(_SENT) if self.when else 0

    def uids(self, scan_range: ScanRange) -> Uids:
        return union(*self.rows(scan_range))

    def rows(self, scan_range: ScanRange) -> list[Select[Any]]:
        """Select the inferences that have the key, table by table; some are in several tables."""
        return [select(table.c.uid).where(self._here(scan_range, table)) for table in _SENT]

    def counted(self, scan_range: ScanRange) -> list[tuple[int, Uids]]:
        """Return lists with signs; in their sum each inference with the key counts once.

        A text that spells a number has rows in two tables.
        """
        rows = self.rows(scan_range)
        if self.many:
            return [(1, union(*rows))]
        again = [self._again(scan_range, index) for index in range(1, len(_SENT))]
        return [*((1, uids) for uids in rows), *((-1, uids) for uids in again)]

    def _again(self, scan_range: ScanRange, index: int) -> Select[Any]:
        """Select those with a row in this table and in one before it."""
        row, before = _SENT[index].alias(), [table.alias() for table in _SENT[:index]]
        elsewhere = union_all(
            *(select(other.c.uid).where(self._here(scan_range, other)) for other in before)
        ).subquery()
        is_elsewhere = exists([elsewhere], elsewhere.c.uid == row.c.uid)
        return select(row.c.uid).where(self._here(scan_range, row), is_elsewhere)

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = [table.alias() for table in _SENT]
        has_row = or_(
            *(exists([row], self._here(scan_range, row), row.c.uid == uid) for row in rows)
        )
        return has_row if self.when else ~has_row

    def _here(self, scan_range: ScanRange, table: FromClause) -> ColumnElement[bool]:
        here = and_(scan_range.of(table), table.c.key == self.names.key(self.key))
        return and_(here, ~table.c.is_null) if self.valued and "is_null" in table.c else here
