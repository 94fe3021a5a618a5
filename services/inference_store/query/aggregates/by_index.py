"""Counts of inferences by group that an index alone answers.

The inferences without a value are all inferences minus those with one, in the same statement.
"""

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
    """Count the inferences that have predictions, but none with a label."""
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
    """Return the row of the group without a value."""
    nobody: Any = null().label("g0")
    return select(nobody, cast(without, BigInteger()).label("n"))
