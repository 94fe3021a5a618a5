"""One statement: the rows of a part that match, added up by groups.

What is measured leads: its own table if it has one, so that an index alone answers; else the table
of inferences. With conditions, the matches lead. The groups are joined to that.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias
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
from sqlalchemy.dialects.postgresql import BYTEA, TEXT
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.long_text import prefix_bounds
from inference_store.index.tables import SIDE_TABLES, inference, prediction
from inference_store.query.deadline import ScanRange, bind_many, bind_one, test_unmarked
from inference_store.query.plan import Plan, Query, build_matches

from .aggregation import Bound, Sum
from .bins import WIDE, as_double, bin_of, exact
from .operands import LABEL, TIME, Operand

Key: TypeAlias = tuple[Any, ...]
"""A value, or a bin, of each dimension."""
By: TypeAlias = Literal["value", "sketch"] | tuple[Bound, ...] | tuple[UUID, ...]
"""One for each value, for each logarithmic bin, or for each bin between these bounds: 0 is below
the first one."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """Groups by an operand; of TIME, by bounds that are uids."""

    operand: Operand
    by: By = "value"

    @property
    def is_of_model(self) -> bool:
        """Check whether all inferences of a model are in one group."""
        operand = self.operand
        return operand.source == "inference" and operand.name in {"model_id", "project_id"}


class Column(NamedTuple):
    """A sum over the values of an operand; of None, the number of rows."""

    operand: Operand | None
    sum: Sum


NUMBER: Final = Column(None, "number")


def merge(column: Column, one: Any, other: Any) -> Any:
    """Add up what two parts have in a column; None: there is no value."""
    if column.sum in {"low", "high", "total", "squares"}:
        one, other = exact(one), exact(other)
    if one is None or other is None:
        return other if one is None else one
    if column.sum in {"low", "high"}:
        return min(one, other) if column.sum == "low" else max(one, other)
    return WIDE.add(one, other) if column.sum in {"total", "squares"} else one + other


def merge_in_sql(column: Column, value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Add up what several models have in a column."""
    if column.sum in {"low", "high"}:
        return func.min(value) if column.sum == "low" else func.max(value)
    return func.sum(value) if column.sum in {"total", "squares"} else _as_whole(value)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is added up of each group: inferences, or the values of the operand that leads.

    `counts`: by what the values of that are groups too, the last ones. `limit`: the first of them
    that begin with the prefix are enough; they are values of a metadata key, without other groups.
    """

    groups: tuple[Dimension, ...] = ()
    columns: tuple[Column, ...] = (NUMBER,)
    leads: Operand | None = None
    counts: By | None = None
    prefix: str = ""
    limit: int | None = None

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """All that it groups by, in the order of the columns."""
        if self.leads is None or self.counts is None:
            return self.groups
        return (*self.groups, Dimension(self.leads, self.counts))

    @property
    def of_rows(self) -> "Statement":
        """The same without groups by what all inferences of a model have, which no row needs."""
        return replace(self, groups=tuple(one for one in self.groups if not one.is_of_model))

    def build(self, query: Query, here: Plan) -> Select[Any]:
        """Select a row for each group: its values, and the columns."""
        if self.limit is not None and not (query.conditions or query.marks):
            return self._go_from_value_to_value(here.scan_range)
        rows = _Rows(query, here, self)
        groups = [rows.group(dimension) for dimension in self.groups]
        if self.leads is not None and self.counts is not None:
            groups.append(_group_by(self.leads, rows.leading, self.counts))
        by = [group.label(f"g{n}") for n, group in enumerate(groups)]
        sums = [rows.add_up(one).label(f"s{n}") for n, one in enumerate(self.columns)]
        built = select(*by, *sums).select_from(rows.joined).where(*rows.tests).group_by(*by)
        if self.limit is None:
            return built
        first = built.where(*_begins(rows.leading, self.prefix)).order_by(by[0]).limit(self.limit)
        return select(first.subquery())

    def build_with_rest(self, query: Query, here: Plan) -> CompoundSelect[Any]:
        """Count all by the values of a single-valued key, from its own table; what is left of the
        inferences has none."""
        # nested: inside of `read_each` it is that of each model
        counted = self.build(query, here).cte(nesting=True)
        everybody = Statement().build(query, here).scalar_subquery()
        rest = everybody - select(func.coalesce(func.sum(counted.c.s0), 0)).scalar_subquery()
        nobody: Any = null()
        return union_all(select(counted), select(nobody, cast(rest, BigInteger())))

    def has_equal(self, query: Query) -> bool:
        """Check whether it puts numbers into logarithmic bins that an index has together where they
        are equal: each different number is then put into its bin once."""
        is_of_key = self.leads is not None and self.leads.source == "metadata"
        return is_of_key and self.counts == "sketch" and not (self.groups or query.conditions)

    def _go_from_value_to_value(self, scan_range: ScanRange) -> Select[Any]:
        """The index finds the next value, however many rows share one."""
        assert self.leads is not None
        table = SIDE_TABLES[self.leads.kind].alias()
        value = table.c.value
        tests = (scan_range.of(table), table.c.key == self.leads.key, *_begins(value, self.prefix))
        here = select(value).where(*tests).order_by(value).limit(1)
        values = select(here.scalar_subquery().label("value")).cte(recursive=True, nesting=True)
        following = here.where(value > values.c.value).correlate(values).scalar_subquery()
        values = values.union_all(select(following).where(values.c.value.is_not(None)))
        some = select(values.c.value, literal(1)).where(values.c.value.is_not(None))
        return some.limit(self.limit)


def count_unlabelled(query: Query, here: Plan) -> Select[Any]:
    """Count inferences without a labelled prediction: the index knows which have none first."""
    rows, labelled = _Rows(query, here, Statement()), prediction.alias()
    there = here.scan_range.of(labelled), labelled.c.uid == rows.uid, labelled.c.label.is_not(None)
    nobody: Any = null()
    without = rows.joined.c.top_label.is_(None), ~select(labelled.c.uid).where(*there).exists()
    return select(nobody, func.count()).where(*rows.tests, *without)


class _Rows:
    """The rows of a range; each group joins the table that it needs."""

    def __init__(self, query: Query, here: Plan, statement: Statement) -> None:
        self._scope, self._leads = here.scan_range, statement.leads
        self._inference: FromClause | None = None
        self._number: ColumnElement[Any] = func.count()
        self._each: ColumnElement[Any] | None = None
        self.tests: list[ColumnElement[bool]] = []
        leads = statement.leads
        self._leader: Any = None
        by_label = leads == LABEL and statement.counts is not None and not statement.groups
        if query.conditions:
            self.joined: FromClause = build_matches(query, here).subquery()
        elif leads is not None and leads.is_apart and (by_label or leads != LABEL):
            self.joined = self._leader = _table(leads, self._scope).alias()
            self.tests = [self._scope.of(self.joined), _is_of_key(leads, self.joined)]
            if by_label:
                self._number = func.count(self.joined.c.uid.distinct())
        else:
            self.joined = self._inference = inference.alias()
            self.tests = [self._scope.of(self.joined)]
        self.uid: ColumnElement[Any] = self.joined.c.uid
        if query.marks and not query.conditions:
            self.tests.append(test_unmarked(self._scope, self.uid))
        if leads is not None and self._leader is None:
            self._leader = self._join(leads) if leads.is_apart else self._join_inference()
        if leads is not None:
            self.tests.append(self.leading.is_not(None))
        if statement.has_equal(query):
            self._read_equal()

    @property
    def leading(self) -> ColumnElement[Any]:
        """The raw value of the operand that leads."""
        assert self._leads is not None
        value: ColumnElement[Any] = self._leads.raw(self._leader)
        return value

    def _read_equal(self) -> None:
        value = self.leading
        equal = select(value, func.count().label("n")).where(*self.tests).group_by(value)
        self.joined = self._leader = equal.subquery()
        self._each, self.tests = self.joined.c.n, []
        self._number = _as_whole(self._each)

    def _join(self, operand: Operand, by: By = "value", *, outer: bool = False) -> FromClause:
        row = _table(operand, self._scope).alias()
        there = and_(self._scope.of(row), row.c.uid == self.uid, _is_of_key(operand, row))
        if operand == LABEL or (operand.many and by != "value"):
            # each label or bin of an inference once, however many rows have it
            value = operand.raw(row)
            once = select(_group_by(operand, value, by).label(value.name))
            row, there = once.where(there, value.is_not(None)).distinct().lateral(), true()
        self.joined = self.joined.join(row, there, isouter=outer)
        return row

    def _join_inference(self) -> FromClause:
        if self._inference is None:
            row = self._inference = inference.alias()
            self.joined = self.joined.join(row, and_(self._scope.of(row), row.c.uid == self.uid))
        return self._inference

    def group(self, dimension: Dimension) -> ColumnElement[Any]:
        """Return what a dimension groups by; NULL: the inference has no value of it.

        What leads is not limited to a group's own value, unless predictions lead: then the label is
        theirs.
        """
        operand, leads = dimension.operand, self._leads
        if operand == TIME:
            return _find_bin(operand, self.uid, dimension.by)
        is_own = operand == LABEL and leads is not None and leads.source == "prediction"
        is_own = is_own or self._has(operand)
        by = dimension.by
        if not operand.is_apart:
            row = self._join_inference()
        elif is_own or (operand == leads and not operand.many):
            row = self._leader
        else:
            row, by = self._join(operand, by, outer=True), "value" if operand.many else by
        return _group_by(operand, operand.raw(row), by)

    def _has(self, operand: Operand) -> bool:
        """Check whether it is a column of the rows that lead."""
        return operand.rows is not None and operand.rows == getattr(self._leads, "rows", None)

    def add_up(self, column: Column) -> ColumnElement[Any]:
        """Return a column of the result."""
        operand, name = column
        if operand is None:
            return self._number
        is_own = operand == self._leads or self._has(operand)
        row = self._leader if is_own else self._join_inference()
        if name == "number":
            return func.count(operand.raw(row)) if self._each is None else self._number
        value = operand.of(row)
        if name == "true":
            return func.count().filter(value.is_(True))
        if name == "bytes":
            return func.string_agg(value, bind_one(b"", BYTEA()))
        if name in {"low", "high"}:
            if operand.source == "metadata" and operand.kind == "string":
                value = func.coalesce(row.c.whole, value)
            return func.min(value) if name == "low" else func.max(value)
        # of a double the decimal that its shortest spelling is
        number = cast(cast(value, Text()) if operand.stored == "double" else value, Numeric())
        number = value if operand.rows and operand.stored == "other" else number
        power = number if name == "total" else number * number
        return func.sum(power if self._each is None else power * self._each)


def _table(operand: Operand, scope: ScanRange) -> FromClause:
    if operand.rows is not None:
        return operand.rows(scope).subquery()
    return SIDE_TABLES[operand.kind] if operand.source == "metadata" else prediction


def _is_of_key(operand: Operand, row: FromClause) -> ColumnElement[bool]:
    return row.c.key == operand.key if operand.source == "metadata" else true()


def _group_by(operand: Operand, value: Any, by: By) -> ColumnElement[Any]:
    if by == "value":
        return value  # type: ignore[no-any-return]
    return bin_of(value) if by == "sketch" else _find_bin(operand, value, by)


def _find_bin(operand: Operand, value: Any, bounds: Any) -> ColumnElement[int]:
    """Return the number of the bin that contains a number, an instant or a uid.

    Doubles are compared as the decimals that they spell.
    """
    if operand == TIME:
        return func.width_bucket(value, bind_many(bounds, UUID_TYPE(as_uuid=True)))
    if operand.kind == "timestamp":
        return func.width_bucket(value, bind_many(bounds, DateTime(timezone=True)))
    if operand.stored == "double":
        doubles = bind_many([as_double(bound) for bound in bounds], Double())
        return func.width_bucket(cast(value, Double()), doubles)
    return func.width_bucket(cast(value, Numeric()), bind_many(bounds, Numeric()))


def _as_whole(number: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(func.sum(number), BigInteger())


def _begins(value: ColumnElement[Any], prefix: str) -> list[ColumnElement[bool]]:
    """Test by the index whether the value begins with the prefix.

    A prefix is shorter than the part of a text that the index has.
    """
    if not prefix:
        return []
    low, high = prefix_bounds(prefix)
    tests = [value >= bind_one(low, TEXT())]
    return tests if high is None else [*tests, value < bind_one(high, TEXT())]
