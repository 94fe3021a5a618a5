"""The SQL of one part: the rows that match, each with its groups and the measured value.

The measured value drives: a side table if it is metadata, so that an index alone answers; else the
table of inferences. With conditions, the matches drive. The groups are joined to that.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
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
    null,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.tables import SIDE_TABLES, inference, prediction
from inference_store.inference.errors import TooManyGroups
from inference_store.query.aggregates.aggregation import LABEL, Bound, Operand, Sum, raw
from inference_store.query.aggregates.bins import WIDE, as_double, bin_of, exact
from inference_store.query.deadline import (
    GROUP,
    Deadline,
    ScanRange,
    bind_many,
    bind_one,
    fetch,
    find_pieces_of,
    span_around,
    split_groups,
    split_unbroken,
    test_unmarked,
)
from inference_store.query.driving import (
    DrivingIndex,
    build_matches,
    find_candidates,
    group_by_joins,
    settings_for,
)
from inference_store.query.matching import Query


@dataclass(frozen=True, slots=True)
class Value:
    """A group for each value."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class InTime:
    """A group for each span between two of these uids."""

    starts: tuple[UUID, ...]

    def around(self, scan_range: ScanRange) -> int | None:
        """Return the number, from 1, of the span that contains the whole range, or None."""
        number = bisect_right(self.starts, scan_range.lo)
        whole = 0 < number < len(self.starts) and scan_range.hi <= self.starts[number]
        return number if whole else None

    def cut(self, scan_range: ScanRange) -> list[ScanRange]:
        """Return the parts of the range in each span."""
        spans = (scan_range.clip(lo, hi) for lo, hi in pairwise(self.starts))
        return [span for span in spans if not span.empty]


@dataclass(frozen=True, slots=True)
class InBins:
    """A group for each bin: 0 is below the first bound."""

    operand: Operand
    bounds: tuple[Bound, ...]


Dimension: TypeAlias = Value | InTime | InBins


class Rows:
    """The rows of a range; each requested group or value joins the tables that it needs."""

    def __init__(self, query: Query, here: DrivingIndex, measured: Operand | None) -> None:
        self._here, self._scope = here, here.scan_range
        self._tests: list[ColumnElement[bool]] = []
        self._inference: FromClause | None = None
        self._measured: FromClause | None = None
        self._operand = measured
        self._from, self._uid = self._start(query)
        if measured is not None and measured.source != "inference" and self._measured is None:
            self._measured = self._join(measured)

    def _start(self, query: Query) -> tuple[FromClause, ColumnElement[Any]]:
        if query.conditions:
            matches, unique = build_matches(query, self._here)
            matching = (matches if unique else matches.distinct()).subquery()
            return matching, matching.c.uid
        start = self._leading()
        self._tests.append(self._scope.of(start))
        if query.marks:
            self._tests.append(test_unmarked(self._scope, start.c.uid))
        return start, start.c.uid

    def _leading(self) -> FromClause:
        operand = self._operand
        if operand is None or operand.source in {"inference", "label"}:
            self._inference = inference.alias()
            return self._inference
        self._measured = _table(operand).alias()
        self._tests.append(_is_of_key(operand, self._measured))
        return self._measured

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

    def _own(self) -> FromClause:
        if self._inference is None:
            row = self._inference = inference.alias()
            self._from = self._from.join(row, and_(self._scope.of(row), row.c.uid == self._uid))
        return self._inference

    def row_of(self, operand: Operand) -> FromClause:
        """Return the row that has a group's value; it is NULL for an inference without one."""
        if operand.source == "inference":
            return self._own()
        if operand == self._operand and self._measured is not None:
            return self._measured
        return self._join(operand, outer=True)

    def measured(self, operand: Operand) -> FromClause:
        """Return the row that has a measured value."""
        row = self._own() if operand.source == "inference" else self._measured
        assert row is not None
        return row

    def group(self, dimension: Dimension) -> Any:
        """Return the value that a dimension groups by."""
        if isinstance(dimension, InTime):
            return self._span(dimension)
        operand = dimension.operand
        if operand.source == "label" and self._measured_prediction is not None:
            return raw(LABEL, self._measured_prediction)
        row = self.row_of(operand)
        if isinstance(dimension, InBins):
            return in_bin(operand, raw(operand, row), dimension.bounds)
        return raw(operand, row)

    def _span(self, dimension: InTime) -> Any:
        """Return the number of the span: a constant if one span contains the whole range."""
        within = dimension.around(self._scope)
        if within is not None:
            return bind_one(within, INTEGER()).label(None)
        starts = bind_many(dimension.starts, UUID_TYPE(as_uuid=True))
        return func.width_bucket(self._uid, starts).label(None)

    @property
    def _measured_prediction(self) -> FromClause | None:
        operand = self._operand
        return self._measured if operand is not None and operand.source == "prediction" else None

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


def _table(operand: Operand) -> FromClause:
    if operand.source == "metadata":
        return SIDE_TABLES[operand.kind]
    return prediction


def _is_of_key(operand: Operand, row: FromClause) -> ColumnElement[bool]:
    if operand.source == "metadata":
        return row.c.key == operand.key
    return true()


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
        self.low = _choose_end(min, self.low, exact(sums.get("low")))
        self.high = _choose_end(max, self.high, exact(sums.get("high")))
        self.total = WIDE.add(self.total, Decimal(sums.get("total") or 0))
        self.squares = WIDE.add(self.squares, Decimal(sums.get("squares") or 0))
        self.true += sums.get("true") or 0
        self.number += number

    def merge(self, part: "PartialSums") -> None:
        """Add another part."""
        self.add(
            part.number,
            {
                "low": part.low,
                "high": part.high,
                "total": part.total,
                "squares": part.squares,
                "true": part.true,
            },
        )


def _choose_end(chosen: Callable[[Any, Any], Any], held: Any, other: Any) -> Any:
    if held is None or other is None:
        return other if held is None else held
    return chosen(held, other)


Counts: TypeAlias = dict[Key, Counter[Any]]


@dataclass(slots=True)
class PartialAggregate:
    """The inferences of each group, and the sums of properties that were read with them."""

    inferences: Counter[Key] = field(default_factory=Counter)
    sums: dict[Operand, dict[Key, PartialSums]] = field(default_factory=dict)


RequestedSums: TypeAlias = dict[Operand, frozenset[Sum]]


def select_sums(
    query: Query, here: DrivingIndex, groups: Sequence[Dimension], requested_sums: RequestedSums
) -> Select[Any]:
    """Count the rows of each group, and sum each operand; all operands are in one table."""
    leader = next((operand for operand in requested_sums if operand.source != "inference"), None)
    rows = Rows(query, here, leader)
    return rows.grouped(
        [rows.group(dimension) for dimension in groups], _columns(rows, requested_sums)
    )


def select_sums_of_bins(
    query: Query, here: DrivingIndex, operand: Operand, sums: frozenset[Sum]
) -> Select[Any]:
    """Select the sums of each logarithmic bin of an operand that is not a property."""
    rows = Rows(query, here, operand)
    own = raw(operand, rows.measured(operand))
    return rows.grouped([bin_of(own)], _columns(rows, {operand: sums})).where(own.is_not(None))


def _columns(rows: Rows, requested_sums: RequestedSums) -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [func.count().label("n")]
    for operand, sums in requested_sums.items():
        row = rows.measured(operand)
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


def _order_value(operand: Operand, row: Any) -> Any:
    if operand.source == "metadata":
        if operand.kind == "string":
            return func.coalesce(row.c.whole, row.c.value)
        return row.c.value
    sql = operand.property.sql
    assert sql is not None
    return sql(row)


def select_counts(
    query: Query,
    here: DrivingIndex,
    groups: Sequence[Dimension],
    operand: Operand,
    value: CountedBy,
) -> Select[Any]:
    """Count each value (`value`), logarithmic bin (`sketch`) or bin (bounds) in each group."""
    rows = Rows(query, here, operand)
    by = [rows.group(dimension) for dimension in groups]
    own = raw(operand, rows.measured(operand))
    counts = rows.grouped([*by, bin_value(operand, own, value)], [func.count().label("n")])
    return counts.where(own.is_not(None))


def bin_value(operand: Operand, value: Any, by: CountedBy) -> Any:
    """Return the value itself, or its bin."""
    if by == "value":
        return value
    return bin_of(value) if by == "sketch" else in_bin(operand, value, by)


def by_one_key(query: Query, here: DrivingIndex, dimension: Dimension) -> CompoundSelect[int]:
    """Count inferences by the values of a single-valued key, from its side table."""
    assert not isinstance(dimension, InTime)
    rows = Rows(query, here, dimension.operand)
    groups = rows.grouped([rows.group(dimension)], [func.count().label("n")]).cte()
    with_value = select(func.coalesce(func.sum(groups.c.n), 0)).scalar_subquery()
    nobody = _number(_everybody(query, here.scan_range).scalar_subquery() - with_value)
    return union_all(select(groups.c.g0, groups.c.n), nobody)


def by_label(query: Query, here: DrivingIndex) -> Select[Any]:
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


def without_label(query: Query, here: DrivingIndex) -> Select[Any]:
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


# Runs statements part by part, over the partitions of a model.

# The rows of one part's result, at most: groups, or groups and values. All parts: twice as many.
MOST_ROWS: Final = 100_000


@dataclass(slots=True)
class Budget:
    """The rows that may still be held, counted after equal ones were merged."""

    most_of_a_part: int = field(default_factory=lambda: MOST_ROWS)
    remaining: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = 2 * self.most_of_a_part

    def take(self) -> None:
        """Count one more row as held. Raises TooManyGroups."""
        if self.remaining == 0:
            raise TooManyGroups(
                f"The measures have more than {2 * self.most_of_a_part:,} groups, or different"
                " values in groups, together: ask for fewer at once, narrow the conditions, group"
                " by fewer names, or by a histogram."
            )
        self.remaining -= 1

    def part_too_large(self) -> TooManyGroups:
        """Return the error for a part that alone has too many rows."""
        return TooManyGroups(
            f"There are more than {self.most_of_a_part:,} groups, or different values in groups:"
            " narrow the conditions, group by fewer names, or by a histogram."
        )


# Aggregates read much and answer little: two more processes of Postgres may help with one.
WORKERS: Final = 2
# Up to this many spans of time are read one by one; with more, each row is tested for its span.
MOST_SPANS_READ: Final = 4 * GROUP
Part: TypeAlias = Select[Any] | CompoundSelect[Any]
Build: TypeAlias = Callable[[Query, DrivingIndex], Part]
StoredRows: TypeAlias = Callable[
    [AsyncConnection, Query, Sequence[ScanRange], Deadline],
    Awaitable[Mapping[ScanRange, Sequence[Any]]],
]
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class PartReader:
    """Reads the parts of one request, a few at once."""

    def __init__(
        self,
        connection: AsyncConnection,
        dimensions: Sequence[Dimension],
        deadline: Deadline,
        budget: Budget,
    ) -> None:
        self._connection = connection
        self._dimensions = dimensions
        self._deadline = deadline
        self._budget = budget

    async def rows(
        self,
        query: Query,
        build: Build,
        what: str,
        *,
        as_one: bool = True,
        settings: Mapping[str, str] = NOTHING,
        stored: StoredRows | None = None,
    ) -> AsyncIterator[Any]:
        """Yield the rows of all parts. Raises TooManyGroups.

        `as_one`: without conditions the partitions of a group are read as one. `settings`: settings
        of Postgres, if there are no conditions. `stored`: returns the rows of parts that need not
        be read.
        """
        if query.nothing or query.scan_range.empty:
            return
        parts = await find_pieces_of(self._connection, query.scan_range, newest_first=True)
        if stored is not None:
            stored_rows = await stored(self._connection, query, parts, self._deadline)
            parts = [part for part in parts if part not in stored_rows]
            for rows in stored_rows.values():
                for row in rows:
                    yield row
        if not query.conditions:
            for group in split_unbroken(parts):
                here = self._spans(span_around(group)) if as_one else group
                statements = [
                    partial(build, query, DrivingIndex(scan_range)) for scan_range in here
                ]
                async for row in self._fetched(statements, what, settings, large=False):
                    yield row
            return
        for group in split_groups(parts, query.group):
            for there in group_by_joins(
                await find_candidates(self._connection, query, group, self._deadline)
            ):
                statements = [partial(build, query, leading) for leading in there]
                async for row in self._fetched(
                    statements, what, settings_for(there), large=query.large
                ):
                    yield row

    def _spans(self, scan_range: ScanRange) -> Sequence[ScanRange]:
        """Return the ranges to read at once, by several processes: the spans of time, if they are
        few, so that no row has to be tested for its span."""
        in_time = next(
            (dimension for dimension in self._dimensions if isinstance(dimension, InTime)), None
        )
        spans = [scan_range] if in_time is None else in_time.cut(scan_range)
        return spans if len(spans) <= MOST_SPANS_READ else [scan_range]

    async def _fetched(
        self,
        statements: Sequence[Callable[[], Part]],
        what: str,
        settings: Mapping[str, str],
        *,
        large: bool,
    ) -> AsyncIterator[Any]:
        """Yield the rows of several parts, read together, or one by one if they have many rows.

        A few groups may have a row in every part. Raises TooManyGroups if one part has too many.
        """
        if not statements:
            return
        most = self._budget.most_of_a_part
        rows = await fetch(
            self._connection,
            lambda: _together([part() for part in statements], most + 1),
            self._deadline,
            large=large,
            # each process would have hashes of its own, and their memory is meant for one
            workers=0 if "hash_mem_multiplier" in settings else WORKERS,
            what=what,
            settings=settings,
        )
        if len(rows) <= most:
            for row in rows:
                yield row
            return
        if len(statements) == 1:
            raise self._budget.part_too_large()
        del rows  # free them before the parts are read again
        for part in statements:
            async for row in self._fetched([part], what, settings, large=large):
                yield row


def _together(parts: Sequence[Part], most: int) -> Select[Any]:
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    return select(rows).limit(most)
