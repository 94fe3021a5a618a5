"""Inferences by the groups that an index alone counts. Those without a value are what is left of
all, counted by one statement."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    cast,
    func,
    null,
    select,
    union_all,
)
from sqlalchemy.sql.selectable import CompoundSelect

from inference_store.index.tables import inference, prediction
from inference_store.query.driving import DrivingIndex
from inference_store.query.matching import Query
from inference_store.query.scan_range import ScanRange, test_unmarked

from .rows import Dimension, InTime, Rows


def by_one_key(query: Query, here: DrivingIndex, dimension: Dimension) -> CompoundSelect[int]:
    """By the values of a single-valued key, from its side table."""
    assert not isinstance(dimension, InTime)
    rows = Rows(query, here, dimension.operand)
    found = rows.grouped([rows.group(dimension)], [func.count().label("n")]).cte()
    known = select(func.coalesce(func.sum(found.c.n), 0)).scalar_subquery()
    nobody = _number(_everybody(query, here.scan_range).scalar_subquery() - known)
    return union_all(select(found.c.g0, found.c.n), nobody)


def by_label(query: Query, here: DrivingIndex) -> Select[Any]:
    """By the labels of its predictions, each inference once in each.

    The index has a label's predictions together: they are sorted by inference label by label,
    which takes half of what hashes of all do.
    """
    scan_range, row = here.scan_range, prediction.alias()
    return (
        select(row.c.label.label("g0"), func.count(row.c.uid.distinct()).label("n"))
        .where(*_there(query, scan_range, row), row.c.label.is_not(None))
        .group_by(row.c.label)
    )


def without_label(query: Query, here: DrivingIndex) -> Select[Any]:
    """Those of which no prediction has a label: a statement of its own, which leaves the labels to
    several processes."""
    scan_range = here.scan_range
    uids = select(prediction.c.uid).where(*_there(query, scan_range, prediction))
    predicted = uids.group_by(prediction.c.uid).subquery()
    some = select(func.count().label("n")).select_from(predicted).scalar_subquery()
    everybody = _everybody(query, scan_range).scalar_subquery()
    return _number(everybody - some + _unlabelled(query, scan_range).scalar_subquery())


def _unlabelled(query: Query, scan_range: ScanRange) -> Select[int]:
    """How many have predictions, none of them with a label."""
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
    """The group of those without a value."""
    nobody: Any = null().label("g0")
    return select(nobody, cast(without, BigInteger()).label("n"))
