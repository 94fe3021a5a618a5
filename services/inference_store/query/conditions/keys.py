"""Conditions on a metadata key, and relations of two sets of values."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Numeric,
    Select,
    and_,
    case,
    cast,
    except_,
    false,
    func,
    intersect,
    or_,
    select,
    true,
    union,
    union_all,
)

from inference_store.index.tables import SIDE_TABLES, metadata_presence
from inference_store.query.deadline import ScanRange
from inference_store.query.filters import typed
from inference_store.query.filters.arithmetic import SPELT

from .combination import Combination, Names
from .condition import Condition, Uids, exists
from .sides import build_side, collate_text

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


_ValueLists: TypeAlias = list[Select[Any]]
"""Lists of values, which together are a set."""


@dataclass(frozen=True, slots=True)
class Related(Condition):
    """The relation holds, or (`when` False) does not; every element has a value."""

    sets: typed.Sets
    when: bool
    names: Names
    kind: str = "metadata"

    @property
    def scans(self) -> int:
        """The number of kinds of value of the key that drives."""
        return len(self._leader)

    @property
    def _leader(self) -> tuple[typed.Metadata, ...]:
        """The key whose rows an index finds: for an inference without it the predicate is NULL."""
        for element in (*self.sets.left, *self.sets.right):
            keys = tuple(value for value in element if isinstance(value, typed.Metadata))
            if len(keys) == len(element):
                return keys
        return ()

    def uids(self, scan_range: ScanRange) -> Uids:
        lists = []
        for of in self._leader:
            rows = Combination(scan_range, self.names)
            rows.metadata(of)
            lists.append(rows.uids().distinct())
        every = union(*lists).subquery()
        return select(every.c.uid).where(self.holds(scan_range, every.c.uid))

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        rows = partial(Combination, scan_range, self.names, uid)
        elements = (*self.sets.left, *self.sets.right)
        there = [
            or_(*(_select_values(of, rows()).exists() for of in element))
            for element in elements
            if not isinstance(element[0], typed.Constant)
        ]
        left, right = (_by_kind(side, rows) for side in (self.sets.left, self.sets.right))
        is_related = _test_relation(self.sets.relation, left, right)
        return and_(true(), *there, is_related if self.when else ~is_related)


_Lists: TypeAlias = dict[typed.Kind, _ValueLists]


def _test_relation(relation: str, left: _Lists, right: _Lists) -> ColumnElement[bool]:
    """Test the relation, if all elements have values."""
    match relation:
        case "contains":
            return _has_all(left, right)
        case "containedby":
            return _has_all(right, left)
        case "equals":
            return and_(_has_all(left, right), _has_all(right, left))
    kinds = sorted(left.keys() & right.keys())
    return or_(false(), *(intersect(_all(left[k]), _all(right[k])).exists() for k in kinds))


def _has_all(of: _Lists, required: _Lists) -> ColumnElement[bool]:
    lacking = (_select_missing(of.get(kind), rows) for kind, rows in sorted(required.items()))
    return and_(true(), *(~rows.exists() for rows in lacking))


def _by_kind(elements: Iterable[typed.Element], rows: Callable[[], Combination]) -> _Lists:
    lists: _Lists = {}
    constants: dict[typed.Kind, list[typed.Constant]] = {}
    for of in (value for element in elements for value in element):
        if isinstance(of, typed.Constant):
            constants.setdefault(of.kind, []).append(of)
        else:
            lists.setdefault(typed.kind_of(of), []).append(_select_values(of, rows()))
    for kind, items in constants.items():
        lists.setdefault(kind, []).append(_select_written(kind, items, rows().names))
    if "string" in lists:
        lists.setdefault("number", []).extend(map(_spelt, lists["string"]))
    return lists


def _select_written(kind: typed.Kind, items: list[typed.Constant], names: Names) -> Select[Any]:
    numbers: Any = func.unnest(names.constants(items, kind))
    rows = numbers.table_valued("value", name="written").render_derived()
    return select(_in_one_form(kind, rows.c.value).label("value")).correlate_except(rows)


def _select_values(of: typed.Value, rows: Combination) -> Select[Any]:
    sql = _in_one_form(typed.kind_of(of), build_side(of, rows).sql)
    values = select(sql.label("value")).where(*rows.where, sql.is_not(None))
    return values.select_from(*rows.froms).correlate_except(*rows.froms)


def _in_one_form(kind: typed.Kind, sql: ColumnElement[Any]) -> ColumnElement[Any]:
    """Convert to one type and one collation, so that lists can be compared."""
    match kind:
        case "string":
            return collate_text(sql)
        case "number":
            return cast(sql, Numeric)
    return sql


def _spelt(texts: Select[Any]) -> Select[Any]:
    rows = texts.subquery()
    number = cast(case((rows.c.value.op("~")(SPELT), rows.c.value)), Numeric)
    return select(number.label("value")).where(number.is_not(None))


def _select_missing(of: _ValueLists | None, required: _ValueLists) -> Any:
    return _all(required) if of is None else except_(_all(required), _all(of))


def _all(lists: _ValueLists) -> Any:
    return lists[0] if len(lists) == 1 else union_all(*lists)
