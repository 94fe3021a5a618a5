"""Conditions on a metadata key: it was sent, it has a value, or which set of values it has."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    except_,
    false,
    func,
    or_,
    select,
    union,
    union_all,
)

from inference_store.index.tables import SIDE_TABLES, metadata_presence
from inference_store.query.filters.typed import Array
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .condition import Uids, exists
from .names import Names
from .values import build_side

_SENT = (*SIDE_TABLES.values(), metadata_presence)


@dataclass(frozen=True, slots=True)
class OfKey:
    """The key was sent, or (`valued`) has a value, which JSON null is not; or the opposite."""

    key: int
    names: Names
    valued: bool
    when: bool
    many: bool = True
    """Whether an inference may have several rows of the key in one table."""
    kind: str = "metadata"
    unique: bool = True

    @property
    def scans(self) -> int:
        """The number of index scans for its list; 0: inferences without the key are in no index."""
        return len(_SENT) if self.when else 0

    def uids(self, scan_range: ScanRange) -> Uids | None:
        if not self.when:
            return None
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


Which = Literal["some", "among", "others"]


@dataclass(frozen=True, slots=True)
class OfSet:
    """A set of values compared with a set of constants; NULL if there is no value."""

    array: Array
    when: bool
    names: Names
    unique: bool = True

    @property
    def kind(self) -> str:
        return "metadata"

    @property
    def scans(self) -> int:
        return 4 if self.when else 0

    @property
    def _different(self) -> int:
        return len({item.value for item in self.array.items})

    def uids(self, scan_range: ScanRange) -> Uids | None:
        """Select by the rows that are among the constants, or by all rows."""
        if not self.when:
            return None
        among = self._rows(scan_range, None, "among").uids()
        others = self._rows(scan_range, None, "others").uids()
        match self.array.relation:
            case "overlaps":
                return among.distinct()
            case "contains":
                return self._with_all(scan_range)
            case "containedby":
                return except_(self._rows(scan_range, None, "some").uids(), others)
            case _:
                return except_(self._with_all(scan_range), others)

    def _with_all(self, scan_range: ScanRange) -> Uids:
        if not self._different:
            return self._rows(scan_range, None, "some").uids().distinct()
        rows = self._rows(scan_range, None, "among")
        sets = rows.uids().group_by(rows.uid)
        return sets.having(self._counted(rows) == self._different)

    def _counted(self, rows: "_Rows") -> ColumnElement[int]:
        return func.count(rows.value.distinct())

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        is_true = self._holds(scan_range, uid)
        if self.when:
            return is_true
        return and_(self._rows(scan_range, uid, "some").exists(), ~is_true)

    def _holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        some = self._rows(scan_range, uid, "some").exists()
        others = self._rows(scan_range, uid, "others").exists()
        match self.array.relation:
            case "overlaps":
                return self._rows(scan_range, uid, "among").exists()
            case "contains":
                return and_(some, self._has_all(scan_range, uid))
            case "containedby":
                return and_(some, ~others)
            case _:
                return and_(some, self._has_all(scan_range, uid), ~others)

    def _has_all(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = self._rows(scan_range, uid, "among")
        number = select(self._counted(rows)).select_from(*rows.froms).where(*rows.where)
        has_all: ColumnElement[bool] = (
            number.correlate_except(*rows.froms).scalar_subquery() == self._different
        )
        return has_all

    def _rows(self, scan_range: ScanRange, uid: ColumnElement[Any] | None, which: Which) -> "_Rows":
        return _Rows(self, scan_range, uid, which)


class _Rows(Combination):
    """The rows of the set: some, those among the constants, or the others."""

    def __init__(
        self, of: OfSet, scan_range: ScanRange, uid: ColumnElement[Any] | None, which: Which
    ) -> None:
        super().__init__(scan_range, of.names, uid)
        side = build_side(of.array.of, self)
        self.value = side.sql
        if which != "some":
            among = side.among(of.array.items) if of.array.items else false()
            self.where.append(among if which == "among" else ~among)
