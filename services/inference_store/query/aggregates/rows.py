"""The SQL of one part: rows of what matches, each with its groups and the measured value.

What is measured leads: a side table where it is metadata, so that an index alone answers; the
inferences otherwise. With conditions, the matches lead. Groups are joined to that.
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

from .asked import Bound
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
        """The number, from 1, of the one span that holds all of the range; None: there is none."""
        place = bisect_right(self.starts, scan_range.lo)
        whole = 0 < place < len(self.starts) and scan_range.hi <= self.starts[place]
        return place if whole else None

    def cut(self, scan_range: ScanRange) -> list[ScanRange]:
        """The range span by span."""
        spans = (scan_range.clip(lo, hi) for lo, hi in pairwise(self.starts))
        return [each for each in spans if not each.empty]


@dataclass(frozen=True, slots=True)
class InBins:
    """A group for each bin: 0 is below the first bound."""

    operand: Operand
    bounds: tuple[Bound, ...]


Dimension: TypeAlias = Value | InTime | InBins


class Rows:
    """The rows of a range; what is asked for joins what it needs."""

    def __init__(self, query: Query, here: DrivingIndex, measured: Operand | None) -> None:
        self._here, self._scope = here, here.scan_range
        self._tests: list[ColumnElement[bool]] = []
        self._inference: FromClause | None = None
        self._measured: FromClause | None = None
        self._operand = measured
        self._from, self._uid = self._start(query)
        if measured is not None and measured.place != "inference" and self._measured is None:
            self._measured = self._join(measured)

    def _start(self, query: Query) -> tuple[FromClause, ColumnElement[Any]]:
        if query.conditions:
            matches, unique = build_matches(query, self._here)
            found = (matches if unique else matches.distinct()).subquery()
            return found, found.c.uid
        start = self._leading()
        self._tests.append(self._scope.of(start))
        if query.marks:
            self._tests.append(test_unmarked(self._scope, start.c.uid))
        return start, start.c.uid

    def _leading(self) -> FromClause:
        operand = self._operand
        if operand is None or operand.place in {"inference", "label"}:
            self._inference = inference.alias()
            return self._inference
        self._measured = _table(operand).alias()
        self._tests.append(_known(operand, self._measured))
        return self._measured

    def _join(self, operand: Operand, *, outer: bool = False) -> FromClause:
        if operand.place == "label":
            return self._join_labels(outer=outer)
        row = _table(operand).alias()
        on = and_(self._scope.of(row), row.c.uid == self._uid, _known(operand, row))
        self._from = self._from.join(row, on, isouter=outer)
        return row

    def _join_labels(self, *, outer: bool) -> FromClause:
        """Each label of an inference once, whatever the number of its predictions."""
        here = prediction.alias()
        labels = select(here.c.label).where(
            self._scope.of(here), here.c.uid == self._uid, here.c.label.is_not(None)
        )
        row = labels.distinct().lateral()
        self._from = self._from.join(row, true(), isouter=outer)
        return row

    def _own(self) -> FromClause:
        """The row of `inference`."""
        if self._inference is None:
            row = self._inference = inference.alias()
            self._from = self._from.join(row, and_(self._scope.of(row), row.c.uid == self._uid))
        return self._inference

    def row_of(self, operand: Operand) -> FromClause:
        """The row that has a group's value; one without it is joined with NULL."""
        if operand.place == "inference":
            return self._own()
        if operand == self._operand and self._measured is not None:
            return self._measured
        return self._join(operand, outer=True)

    def measured(self, operand: Operand) -> FromClause:
        """The row that has a measured value."""
        row = self._own() if operand.place == "inference" else self._measured
        assert row is not None
        return row

    def group(self, dimension: Dimension) -> Any:
        """The value that a dimension groups by."""
        if isinstance(dimension, InTime):
            return self._span(dimension)
        operand = dimension.operand
        if operand.place == "label" and self._measured_prediction is not None:
            return raw(LABEL, self._measured_prediction)
        row = self.row_of(operand)
        if isinstance(dimension, InBins):
            return in_bin(operand, raw(operand, row), dimension.bounds)
        return raw(operand, row)

    def _span(self, dimension: InTime) -> Any:
        """The number of the span: one for all rows, where the range is within it."""
        within = dimension.around(self._scope)
        if within is not None:
            return bind_one(within, INTEGER()).label(None)
        starts = bind_many(dimension.starts, UUID_TYPE(as_uuid=True))
        return func.width_bucket(self._uid, starts).label(None)

    @property
    def _measured_prediction(self) -> FromClause | None:
        """A prediction's measure is grouped by the label of the very prediction."""
        operand = self._operand
        return self._measured if operand is not None and operand.place == "prediction" else None

    def grouped(
        self, groups: Sequence[ColumnElement[Any]], columns: Sequence[ColumnElement[Any]]
    ) -> Select[Any]:
        """One row a group: its values and the columns."""
        named = [group.label(f"g{n}") for n, group in enumerate(groups)]
        query = select(*named, *columns).select_from(self._from).where(*self._tests)
        return query.group_by(*named)


def in_bin(operand: Operand, value: Any, bounds: Sequence[Any]) -> ColumnElement[int]:
    """The number of the bin that a number or an instant lies in; doubles are compared as the
    decimals they spell."""
    if operand.kind == "timestamp":
        return func.width_bucket(value, bind_many(bounds, DateTime(timezone=True)))
    if operand.stored == "double":
        doubles = bind_many([as_double(bound) for bound in bounds], Double())
        return func.width_bucket(cast(value, Double()), doubles)
    return func.width_bucket(cast(value, Numeric()), bind_many(bounds, Numeric()))


def _table(operand: Operand) -> FromClause:
    if operand.place == "metadata":
        return SIDE_TABLES[operand.kind]
    return prediction


def _known(operand: Operand, row: FromClause) -> ColumnElement[bool]:
    if operand.place == "metadata":
        return row.c.key == operand.key
    return true()
