"""The SQL of one part: the rows that match, each with its groups and the measured value.

The measured value drives: a side table if it is metadata, so that an index alone answers; else the
table of inferences. With conditions, the matches drive. The groups are joined to that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Double,
    FromClause,
    Numeric,
    Select,
    Text,
    and_,
    cast,
    func,
    literal,
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.long_text import prefix_bounds
from inference_store.index.tables import SIDE_TABLES, inference, prediction
from inference_store.query.aggregates.aggregation import LABEL, Bound, Operand, Sum, raw
from inference_store.query.aggregates.bins import WIDE, as_double, bin_of, exact
from inference_store.query.deadline import ScanRange, bind_many, bind_one, test_unmarked
from inference_store.query.plan import Plan, Query, build_matches


@dataclass(frozen=True, slots=True)
class Value:
    """A group for each value."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class InTime:
    """A group for each span between two of these uids."""

    starts: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class InBins:
    """A group for each bin: 0 is below the first bound."""

    operand: Operand
    bounds: tuple[Bound, ...]


Dimension: TypeAlias = Value | InTime | InBins


class Rows:
    """The rows of a range; each requested group or value joins the tables that it needs."""

    def __init__(self, query: Query, here: Plan, measured: Operand | None) -> None:
        self._scope = here.scan_range
        self._measured = measured
        # the rows of inferences (None), and of the measured operand
        self._rows: dict[Operand | None, FromClause] = {}
        self._tests: list[ColumnElement[bool]] = []
        if query.conditions:
            self._from: FromClause = build_matches(query, here).subquery()
        else:
            apart = measured is not None and measured.source in {"metadata", "prediction"}
            leading = measured if apart else None
            self._from = self._rows[leading] = _table(leading).alias()
            self._tests += [self._scope.of(self._from), _is_of_key(leading, self._from)]
            if query.marks:
                self._tests.append(test_unmarked(self._scope, self._from.c.uid))
        self._uid: ColumnElement[Any] = self._from.c.uid
        if measured is not None and measured.source != "inference" and measured not in self._rows:
            self._rows[measured] = self._join(measured)

    def _join(self, operand: Operand, *, outer: bool = False) -> FromClause:
        if operand.source == "label":
            return self._join_labels(outer=outer)
        row = _table(operand).alias()
        on = and_(self._scope.of(row), row.c.uid == self._uid, _is_of_key(operand, row))
        self._from = self._from.join(row, on, isouter=outer)
        return row

    def _join_labels(self, *, outer: bool) -> FromClause:
        """Join each label of an inference once, whatever the number of its predictions."""
        here = prediction.alias()
        labels = select(here.c.label).where(
            self._scope.of(here), here.c.uid == self._uid, here.c.label.is_not(None)
        )
        row = labels.distinct().lateral()
        self._from = self._from.join(row, true(), isouter=outer)
        return row

    def row_of(self, operand: Operand) -> FromClause:
        """Return the row that has a value; it is NULL for an inference without one to group by."""
        if operand.source != "inference":
            known = operand in self._rows
            return self._rows[operand] if known else self._join(operand, outer=True)
        if None not in self._rows:
            row = self._rows[None] = inference.alias()
            self._from = self._from.join(row, and_(self._scope.of(row), row.c.uid == self._uid))
        return self._rows[None]

    def group(self, dimension: Dimension) -> Any:
        """Return the value that a dimension groups by."""
        if isinstance(dimension, InTime):
            starts = bind_many(dimension.starts, UUID_TYPE(as_uuid=True))
            return func.width_bucket(self._uid, starts)
        operand, measured = dimension.operand, self._measured
        if operand.source == "label" and measured is not None and measured.source == "prediction":
            return raw(LABEL, self._rows[measured])
        row = self.row_of(operand)
        if isinstance(dimension, InBins):
            return in_bin(operand, raw(operand, row), dimension.bounds)
        return raw(operand, row)

    def grouped(
        self, groups: Sequence[ColumnElement[Any]], columns: Sequence[ColumnElement[Any]]
    ) -> Select[Any]:
        """Select one row for each group: its values and the columns."""
        labelled = [group.label(f"g{n}") for n, group in enumerate(groups)]
        query = select(*labelled, *columns).select_from(self._from).where(*self._tests)
        return query.group_by(*labelled)


def in_bin(operand: Operand, value: Any, bounds: Sequence[Any]) -> ColumnElement[int]:
    """Return the number of the bin that contains a number or an instant.

    Doubles are compared as the decimals that they spell.
    """
    if operand.kind == "timestamp":
        return func.width_bucket(value, bind_many(bounds, DateTime(timezone=True)))
    if operand.stored == "double":
        doubles = bind_many([as_double(bound) for bound in bounds], Double())
        return func.width_bucket(cast(value, Double()), doubles)
    return func.width_bucket(cast(value, Numeric()), bind_many(bounds, Numeric()))


def _table(operand: Operand | None) -> FromClause:
    if operand is None:
        return inference
    return SIDE_TABLES[operand.kind] if operand.source == "metadata" else prediction


def _is_of_key(operand: Operand | None, row: FromClause) -> ColumnElement[bool]:
    if operand is None or operand.source != "metadata":
        return true()
    return row.c.key == operand.key


Key: TypeAlias = tuple[Any, ...]
CountedBy: TypeAlias = Literal["value", "sketch"] | tuple[Bound, ...]


@dataclass(slots=True)
class PartialSums:
    """Sums of a group's values: count, ends, sum, sum of squares, and the count of true ones."""

    number: int = 0
    low: Any = None
    high: Any = None
    total: Decimal = Decimal(0)
    squares: Decimal = Decimal(0)
    true: int = 0

    def add(self, number: int, sums: dict[Sum, Any]) -> None:
        """Add the sums of another part."""
        if not number:
            return
        ends = [end for end in (self.low, exact(sums.get("low"))) if end is not None]
        self.low = min(ends, default=None)
        ends = [end for end in (self.high, exact(sums.get("high"))) if end is not None]
        self.high = max(ends, default=None)
        self.total = WIDE.add(self.total, Decimal(sums.get("total") or 0))
        self.squares = WIDE.add(self.squares, Decimal(sums.get("squares") or 0))
        self.true += sums.get("true") or 0
        self.number += number

    def merge(self, part: "PartialSums") -> None:
        """Add another part."""
        self.add(part.number, {name: getattr(part, name) for name in get_args(Sum)})


Counts: TypeAlias = dict[Key, Counter[Any]]


RequestedSums: TypeAlias = Mapping[Operand, frozenset[Sum]]


@dataclass(slots=True)
class Summed:
    """A group: its inferences, or how often its value was counted, and the sums of operands."""

    inferences: int = 0
    sums: dict[Operand, PartialSums] = field(default_factory=dict)

    def add(self, row: Any, requested_sums: RequestedSums) -> None:
        """Add a row of `select_groups`."""
        self.inferences += int(row.n)
        column = row._fields.index("n") + 1
        for operand, sums in requested_sums.items():
            values = dict(zip(sorted(sums), row[column + 1 :], strict=False))
            self.sums.setdefault(operand, PartialSums()).add(row[column], values)
            column += 1 + len(sums)

    def merge(self, other: "Summed") -> None:
        """Add another part."""
        self.inferences += other.inferences
        self.merge_sums(other)

    def merge_sums(self, other: "Summed") -> None:
        """Add the sums of another part."""
        for operand, sums in other.sums.items():
            self.sums.setdefault(operand, PartialSums()).merge(sums)


Groups: TypeAlias = dict[Key, Summed]


Counted: TypeAlias = tuple[Operand, CountedBy]
"""An operand whose values (`value`), logarithmic bins (`sketch`) or bins (bounds) are counted."""


def select_groups(
    query: Query,
    here: Plan,
    groups: Sequence[Dimension],
    requested_sums: RequestedSums,
    counted: Counted | None = None,
) -> Select[Any]:
    """Count the rows of each group, and sum each operand; all operands are in one table.

    `counted`: each of its values, or bins, is a group within the groups.
    """
    leader = next((operand for operand in requested_sums if operand.source != "inference"), None)
    rows = Rows(query, here, leader if counted is None else counted[0])
    by = [rows.group(dimension) for dimension in groups]
    columns = _columns(rows, requested_sums)
    if counted is None:
        return rows.grouped(by, columns)
    operand, value = counted
    own = raw(operand, rows.row_of(operand))
    return rows.grouped([*by, bin_value(operand, own, value)], columns).where(own.is_not(None))


def _columns(rows: Rows, requested_sums: RequestedSums) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [func.count().label("n")]
    for operand, sums in requested_sums.items():
        row = rows.row_of(operand)
        columns.append(func.count(raw(operand, row)))
        columns += [_select_sum(name, operand, row) for name in sorted(sums)]
    return columns


def _select_sum(name: Sum, operand: Operand, row: Any) -> ColumnElement[Any]:
    if name == "true":
        return func.count().filter(raw(operand, row).is_(True))
    value = _order_value(operand, row)
    if name in {"total", "squares"}:
        if operand.stored == "double":  # the decimal that its shortest spelling is
            value = cast(value, Text())
        number = cast(value, Numeric())
        return func.sum(number if name == "total" else number * number)
    return func.min(value) if name == "low" else func.max(value)


def merge_sums(name: str, value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Merge the sums of several models, a `Sum` or the number `n`, to one."""
    if name in {"low", "high"}:
        return func.min(value) if name == "low" else func.max(value)
    return _as_whole(value).label(value.name) if name in {"n", "true"} else func.sum(value)


def _order_value(operand: Operand, row: Any) -> Any:
    if operand.source == "metadata":
        if operand.kind == "string":
            return func.coalesce(row.c.whole, row.c.value)
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)


# Bins of a metadata number over all inferences: the index has equal numbers together.
#
# So equal numbers are counted first, and each different number is then processed once.


def select_bins(
    query: Query, here: Plan, requested_sums: RequestedSums, counted: Counted
) -> Select[Any]:
    """Select what `select_groups` does for the bins of a metadata number."""
    operand, by = counted
    rows = Rows(query, here, operand)
    own = rows.row_of(operand).c.value
    values = rows.grouped([own], [func.count().label("n")]).subquery()
    value, n = values.c.g0, values.c.n
    sums_by_name = {
        "low": func.min(value),
        "high": func.max(value),
        "total": func.sum(value * n),
        "squares": func.sum(value * value * n),
    }
    group = bin_value(operand, value, by).label("g0")
    columns: list[ColumnElement[Any]] = [_as_whole(n).label("n")]
    for sums in requested_sums.values():
        columns += [_as_whole(n), *(sums_by_name[name] for name in sorted(sums))]
    return select(group, *columns).group_by(group)


def ends_of(_: Query, here: Plan, operand: Operand) -> Select[Any]:
    """Select the smallest and the largest value, at the ends of an index; they count as one."""
    row = SIDE_TABLES[operand.kind]
    value = row.c.value
    ends = select(func.min(value).label("low"), func.max(value).label("high"))
    found = ends.where(here.scan_range.of(row), row.c.key == operand.key).subquery().c
    number = cast(found.low.is_not(None), INTEGER)
    return select(number.label("n"), number.label("number"), found.high, found.low)


def select_first(
    query: Query, here: Plan, operand: Operand, prefix: str, limit: int
) -> Select[Any]:
    """Select the first values of a metadata key that begin with the prefix."""
    if not query.conditions and not query.marks:
        return _from_value_to_value(here.scan_range, operand, prefix, limit)
    rows = Rows(query, here, operand)
    value = rows.row_of(operand).c.value
    first = rows.grouped([value], [func.count().label("n")]).where(*_begins(value, prefix))
    return select(first.order_by(value).limit(limit).subquery())


def _from_value_to_value(
    scan_range: ScanRange, operand: Operand, prefix: str, limit: int
) -> Select[Any]:
    """Select the values one by one: the index finds the next one, however many rows share it."""
    table = SIDE_TABLES[operand.kind].alias()
    value = table.c.value
    here = (
        select(value)
        .where(scan_range.of(table), table.c.key == operand.key, *_begins(value, prefix))
        .order_by(value)
        .limit(1)
    )
    values = select(here.scalar_subquery().label("value")).cte(recursive=True, nesting=True)
    following = here.where(value > values.c.value).correlate(values).scalar_subquery()
    values = values.union_all(select(following).where(values.c.value.is_not(None)))
    there = values.c.value.is_not(None)
    return select(values.c.value, literal(1).label("n")).where(there).limit(limit)


def _begins(value: ColumnElement[Any], prefix: str) -> list[ColumnElement[bool]]:
    """Test by the index whether the value begins with the prefix.

    A prefix is shorter than the part of a text that the index has.
    """
    if not prefix:
        return []
    low, high = prefix_bounds(prefix)
    tests = [value >= bind_one(low, TEXT())]
    return tests if high is None else [*tests, value < bind_one(high, TEXT())]


def _as_whole(number: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.sum(number), BigInteger())


def bin_value(operand: Operand, value: Any, by: CountedBy) -> Any:
    """Return the value itself, or its bin."""
    if by == "value":
        return value
    return bin_of(value) if by == "sketch" else in_bin(operand, value, by)


def by_one_key(query: Query, here: Plan, dimension: Dimension) -> CompoundSelect[int]:
    """Count inferences by the values of a single-valued key, from its side table."""
    assert not isinstance(dimension, InTime)
    rows = Rows(query, here, dimension.operand)
    # nested: inside of `read_each` it is that of each model
    groups = rows.grouped([rows.group(dimension)], [func.count().label("n")]).cte(nesting=True)
    with_value = select(func.coalesce(func.sum(groups.c.n), 0)).scalar_subquery()
    nobody = _number(_everybody(query, here.scan_range).scalar_subquery() - with_value)
    return union_all(select(groups.c.g0, groups.c.n), nobody)


def by_label(query: Query, here: Plan) -> Select[Any]:
    """Count inferences by the labels of their predictions, each inference once per label.

    The index has the predictions of a label together: sorting them by inference, label by label,
    takes half the memory of hashing all of them.
    """
    scan_range, row = here.scan_range, prediction.alias()
    return (
        select(row.c.label.label("g0"), func.count(row.c.uid.distinct()).label("n"))
        .where(*_there(query, scan_range, row), row.c.label.is_not(None))
        .group_by(row.c.label)
    )


def without_label(query: Query, here: Plan) -> Select[Any]:
    """Count inferences without a labelled prediction.

    It is a statement of its own, so that several processes can count the labels.
    """
    scan_range = here.scan_range
    uids = select(prediction.c.uid).where(*_there(query, scan_range, prediction))
    predicted = uids.group_by(prediction.c.uid).subquery()
    some = select(func.count().label("n")).select_from(predicted).scalar_subquery()
    everybody = _everybody(query, scan_range).scalar_subquery()
    return _number(everybody - some + _unlabelled(query, scan_range).scalar_subquery())


def _unlabelled(query: Query, scan_range: ScanRange) -> Select[int]:
    row, other = prediction.alias(), prediction.alias()
    labelled = select(other.c.uid).where(
        scan_range.of(other), other.c.uid == row.c.uid, other.c.label.is_not(None)
    )
    return select(func.count(row.c.uid.distinct()).label("n")).where(
        *_there(query, scan_range, row), row.c.label.is_(None), ~labelled.exists()
    )


def _everybody(query: Query, scan_range: ScanRange) -> Select[int]:
    return (
        select(func.count().label("n"))
        .select_from(inference)
        .where(*_there(query, scan_range, inference))
    )


def _there(query: Query, scan_range: ScanRange, table: FromClause) -> list[ColumnElement[bool]]:
    return [
        scan_range.of(table),
        *([test_unmarked(scan_range, table.c.uid)] if query.marks else ()),
    ]


def _number(without: ColumnElement[int]) -> Select[Any]:
    nobody: Any = null().label("g0")
    return select(nobody, cast(without, BigInteger()).label("n"))
