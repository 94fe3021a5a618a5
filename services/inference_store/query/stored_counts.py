"""Reads stored counts of partitions that are no longer written, instead of counting again.

They are used for a partition that is wholly in the range, has been counted, was not written since,
and has no pending deletion. All other partitions are counted as if nothing were stored.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Uuid,
    case,
    cast,
    exists,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.distribution import is_distributed_cached
from inference_store.index.tables import erasing, outdated_count, partition_count

from .conditions.combination import Found, OfKey
from .deadline import Deadline, ScanRange, bind_many, fetch
from .filters import typed
from .filters.typed import Predicate
from .plan import Query

WHAT: Final = "read stored counts"
Number: TypeAlias = ColumnElement[Any]


async def read_stored(
    connection: AsyncConnection,
    query: Query,
    parts: Sequence[ScanRange],
    column: Number,
    deadline: Deadline,
) -> dict[ScanRange, Any]:
    """Return a column of the valid counts, by model and part, if it is not NULL.

    Raises OutOfTime.
    """
    if not parts or await is_distributed_cached(connection):  # nothing is stored there
        return {}
    select_valid = partial(_select_valid, query, parts, column)
    rows = await fetch(connection, select_valid, deadline, what=WHAT)
    whole = {(part.lo, part.hi) for part in parts}
    return {
        ScanRange(row.model, row.lo, row.hi): row.number
        for row in rows
        if (row.lo, row.hi) in whole and row.number is not None
    }


def _select_valid(query: Query, parts: Sequence[ScanRange], column: Number) -> Select[Any]:
    here, mark = partition_count.c, erasing.c
    starts = bind_many([part.lo for part in parts], Uuid())
    outdated = exists().where(outdated_count.c.partition_count == here.id)
    # a deletion outdates the counts when it takes the marks: one of both is seen
    within = (mark.model == here.model, mark.uid >= here.lo, mark.uid < here.hi)
    marked = exists().where(*within, mark.scope == "inference")
    return select(here.model, here.lo, here.hi, column.label("number")).where(
        here.model == bind_many(query.scan_range.models, INTEGER()).any_(),
        here.lo == starts.any_(),
        here.counted_at.is_not(None),
        ~outdated,
        *([~marked] if query.marks else ()),
    )


async def read_numbers(
    connection: AsyncConnection, query: Query, parts: Sequence[ScanRange], deadline: Deadline
) -> dict[ScanRange, int]:
    """Return the number of matches, by model and part, where counts are stored. Raises
    OutOfTime."""
    column = choose_column(query)
    return {} if column is None else await read_stored(connection, query, parts, column, deadline)


def choose_column(query: Query) -> Number | None:
    """Return the column with the number of matches in a partition; None if that is not stored."""
    here = partition_count.c
    if not query.conditions:
        return here.inferences
    if len(query.conditions) > 1:
        return None
    match query.conditions[0]:
        case OfKey(key, valued=valued, when=when):
            having = _select_number(here["keys"], key, 1 if valued else 0)
            return having if when else here.inferences - having
        case Found((typed.Predicted(condition, "prediction"), True), names) if (
            name := _get_label(condition)
        ) is not None:
            return _select_number(here.labels, names.label(name))
    return None


def _select_number(column: Any, number: int, index: int | None = None) -> Number:
    """Return the stored number of a key or label, or 0; NULL if there were too many to store."""
    entry = column[str(number)] if index is None else column[str(number)][index]
    number_stored = func.coalesce(cast(entry.astext, BigInteger), 0)
    return case((column.is_not(None), number_stored))


def _get_label(condition: Predicate | None) -> str | None:
    match condition:
        case typed.Compared("=" | "in", (typed.Column("label"), typed.Constant(value=name))):
            return str(name)
    return None
