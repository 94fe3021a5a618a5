"""Reads stored counts of partitions that are no longer written, instead of counting again.

They are used for a partition that is wholly in the range, has been counted, was not written since,
and has no pending deletion. All other partitions are counted as if nothing were stored.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Integer,
    Select,
    Uuid,
    case,
    cast,
    exists,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import erasing, outdated_count, partition_count

from .conditions.combination import Found
from .conditions.keys import OfKey
from .deadline import Deadline, ScanRange, bind_many, fetch
from .filters import typed
from .filters.typed import Predicate
from .matching import Query

WHAT: Final = "read stored counts"
_LOOKS: Final = 50
Number: TypeAlias = ColumnElement[Any]


async def read_stored(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[ScanRange],
    column: Number,
    deadline: Deadline,
) -> dict[ScanRange, Any]:
    """Return a column of the valid counts, by model and piece, if it is not NULL.

    Raises OutOfTime.
    """
    if not (queries and parts):
        return {}
    # Marks first: a deletion after this has outdated its counts before they are read.
    marking = [query.scan_range.model for query in queries if query.marks]
    marked = await _find_marked(connection, marking, parts, deadline)
    holding = partial(_select_valid, [query.scan_range.model for query in queries], parts, column)
    rows = await fetch(connection, holding, deadline, what=WHAT)
    whole = {(part.lo, part.hi) for part in parts}
    stored = {
        ScanRange(row.model, row.lo, row.hi): row.number
        for row in rows
        if (row.lo, row.hi) in whole and row.number is not None
    }
    return {piece: number for piece, number in stored.items() if piece not in marked}


def _select_valid(models: Sequence[int], parts: Sequence[ScanRange], column: Number) -> Select[Any]:
    here = partition_count.c
    starts = bind_many([part.lo for part in parts], Uuid())
    outdated = exists().where(outdated_count.c.partition_count == here.id)
    return select(here.model, here.lo, here.hi, column.label("number")).where(
        here.model == bind_many(models, INTEGER()).any_(),
        here.lo == starts.any_(),
        here.counted_at.is_not(None),
        ~outdated,
    )


async def _find_marked(
    connection: AsyncConnection,
    models: Sequence[int],
    parts: Sequence[ScanRange],
    deadline: Deadline,
) -> set[ScanRange]:
    scopes = [replace(part, model=model) for model in models for part in parts]
    marked: set[ScanRange] = set()
    for start in range(0, len(scopes), _LOOKS):
        batch = scopes[start : start + _LOOKS]
        rows = await fetch(
            connection, partial(_select_marks, batch), deadline, what="look for marks"
        )
        marked |= {batch[row.place] for row in rows}
    return marked


def _select_marks(scopes: Sequence[ScanRange]) -> CompoundSelect[Any]:
    return union_all(
        *(
            select(literal(index, Integer).label("place"))
            .where(scan_range.of(erasing), erasing.c.scope == "inference")
            .limit(1)
            for index, scan_range in enumerate(scopes)
        )
    )


async def read_numbers(
    connection: AsyncConnection,
    queries: Sequence[Query],
    parts: Sequence[ScanRange],
    deadline: Deadline,
) -> dict[ScanRange, int]:
    """Return the number of matches in each piece whose counts are stored. Raises OutOfTime.

    The queries are one request of several models.
    """
    number = choose_column(queries[0]) if queries else None
    if number is None:
        return {}
    return await read_stored(connection, queries, parts, number, deadline)


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
        case Found((typed.Predicted(condition), True), names) if (
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
        case typed.Compared("=", typed.Column("label"), typed.Constant(value=name)):
            return str(name)
        case typed.Among(typed.Column("label"), items=(typed.Constant(value=name),)):
            return str(name)
    return None
