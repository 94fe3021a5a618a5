"""The SQL of one part: the rows that match, each with its groups and the measured value.

The measured value drives: a side table if it is metadata, so that an index alone answers; else the
table of inferences. With conditions, the matches drive. The groups are joined to that.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Double,
    FromClause,
    Numeric,
    Select,
    and_,
    cast,
    func,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE

from inference_store.index.tables import SIDE_TABLES, inference, prediction
from inference_store.query.driving import DrivingIndex, build_matches
from inference_store.query.matching import Query
from inference_store.query.operand import bind_many, bind_one
from inference_store.query.scan_range import ScanRange, test_unmarked

from .aggregation import Bound
from .bins import as_double
from .operand import LABEL, Operand, raw


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
        """Return the row of `inference`."""
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
        """The measured prediction: its measure is grouped by its own label."""
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
