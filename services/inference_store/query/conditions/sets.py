"""Compares two sets of values, each of all that several elements have."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
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

from inference_store.query.filters.arithmetic import SPELT
from inference_store.query.filters.typed import (
    Constant,
    Element,
    Kind,
    Metadata,
    Sets,
    Value,
    kind_of,
)
from inference_store.query.scan_range import ScanRange

from .combination import Combination
from .condition import Uids
from .names import Names
from .sides import collate_text
from .values import build_side

_Rows: TypeAlias = list[Select[Any]]
"""Lists of values, which together are a set."""


@dataclass(frozen=True, slots=True)
class Related:
    """The relation holds; or it does not, and every element has a value."""

    sets: Sets
    when: bool
    names: Names
    kind: str = "metadata"
    unique: bool = True

    @property
    def scans(self) -> int:
        """One for each kind of value of the key that drives."""
        return len(self._leader)

    @property
    def _leader(self) -> tuple[Metadata, ...]:
        """The key whose rows an index finds: for an inference without it the predicate is NULL."""
        for element in (*self.sets.one, *self.sets.other):
            keys = tuple(value for value in element if isinstance(value, Metadata))
            if len(keys) == len(element):
                return keys
        return ()

    def uids(self, scan_range: ScanRange) -> Uids | None:
        lists = [self._with(of, scan_range) for of in self._leader]
        if not lists:
            return None
        rows = union(*(each.distinct() for each in lists)).subquery()
        return select(rows.c.uid).where(self.holds(scan_range, rows.c.uid))

    def _with(self, of: Metadata, scan_range: ScanRange) -> Select[Any]:
        rows = Combination(scan_range, self.names)
        rows.metadata(of)
        return rows.uids()

    def holds(self, scan_range: ScanRange, uid: ColumnElement[Any]) -> ColumnElement[bool]:
        asked = _Asked(self.sets, scan_range, uid, self.names)
        found = asked.related()
        return and_(*asked.known(), found if self.when else ~found)


@dataclass(frozen=True)
class _Asked:
    """The sets of one inference."""

    sets: Sets
    scan_range: ScanRange
    uid: ColumnElement[Any]
    names: Names

    def known(self) -> Iterator[ColumnElement[bool]]:
        """Yield the tests that every element has a value."""
        yield true()
        for element in (*self.sets.one, *self.sets.other):
            if not isinstance(element[0], Constant):
                yield or_(*(self._values(of).exists() for of in element))

    def related(self) -> ColumnElement[bool]:
        """Test the relation between sets that are known."""
        match self.sets.relation:
            case "contains":
                return self._has_all(self._one, self._other)
            case "containedby":
                return self._has_all(self._other, self._one)
            case "equals":
                ways = (self._one, self._other), (self._other, self._one)
                return and_(*(self._has_all(*way) for way in ways))
        kinds = sorted(self._one.keys() & self._other.keys())
        shared = (intersect(_all(self._one[k]), _all(self._other[k])) for k in kinds)
        return or_(false(), *(rows.exists() for rows in shared))

    def _has_all(self, of: dict[Kind, _Rows], wanted: dict[Kind, _Rows]) -> ColumnElement[bool]:
        """Test that no kind misses a wanted value."""
        lacking = (_select_missing(of.get(kind), rows) for kind, rows in sorted(wanted.items()))
        return and_(true(), *(~rows.exists() for rows in lacking))

    @cached_property
    def _one(self) -> dict[Kind, _Rows]:
        return self._by_kind(self.sets.one)

    @cached_property
    def _other(self) -> dict[Kind, _Rows]:
        return self._by_kind(self.sets.other)

    def _by_kind(self, elements: Iterable[Element]) -> dict[Kind, _Rows]:
        found: dict[Kind, _Rows] = {}
        constants: dict[Kind, list[Constant]] = {}
        for of in (value for element in elements for value in element):
            if isinstance(of, Constant):
                constants.setdefault(of.kind, []).append(of)
            else:
                found.setdefault(kind_of(of), []).append(self._values(of))
        for kind, items in constants.items():
            found.setdefault(kind, []).append(self._written(kind, items))
        if "string" in found:
            found.setdefault("number", []).extend(map(_spelt, found["string"]))
        return found

    def _written(self, kind: Kind, items: list[Constant]) -> Select[Any]:
        each: Any = func.unnest(self.names.constants(items, kind))
        rows = each.table_valued("value", name="written").render_derived()
        return select(_in_one_form(kind, rows.c.value).label("value")).correlate_except(rows)

    def _values(self, of: Value) -> Select[Any]:
        rows = Combination(self.scan_range, self.names, self.uid)
        sql = _in_one_form(kind_of(of), build_side(of, rows).sql)
        found = select(sql.label("value")).where(*rows.where, sql.is_not(None))
        return found.select_from(*rows.froms).correlate_except(*rows.froms)


def _in_one_form(kind: Kind, sql: ColumnElement[Any]) -> ColumnElement[Any]:
    """Convert to one type and one collation, so that lists can be compared."""
    match kind:
        case "string":
            return collate_text(sql)
        case "number":
            return cast(sql, Numeric)
    return sql


def _spelt(texts: Select[Any]) -> Select[Any]:
    """Select the numbers that texts spell."""
    rows = texts.subquery()
    number = cast(case((rows.c.value.op("~")(SPELT), rows.c.value)), Numeric)
    return select(number.label("value")).where(number.is_not(None))


def _select_missing(of: _Rows | None, wanted: _Rows) -> Any:
    """Select what is wanted and missing."""
    return _all(wanted) if of is None else except_(_all(wanted), _all(of))


def _all(lists: _Rows) -> Any:
    return lists[0] if len(lists) == 1 else union_all(*lists)
