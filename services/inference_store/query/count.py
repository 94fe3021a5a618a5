"""How many inferences match, partition by partition; in some that is stored."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import Select, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from .bounded import Deadline, OutOfTime, fetch
from .conditions import OfKey
from .lacking import JOINING, WORKERS, counts, lacking
from .leading import Leading, chosen, settings_for, together
from .looking import looked_at
from .matching import Query, pieces_of
from .scope import groups
from .stored import numbers


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """The number of matches. Raises OutOfTime."""
    if query.nothing or query.scope.empty:
        return 0
    parts = await pieces_of(connection, query, newest_first=True)
    known = await numbers(connection, [query], parts, deadline)
    matches = sum(known.values())
    for group in groups([part for part in parts if part not in known], query.group):
        for there in together(await looked_at(connection, query, group, deadline)):
            matches += await _sum(connection, query, there, deadline)
    return matches


async def _sum(
    connection: AsyncConnection, query: Query, there: Sequence[Leading], deadline: Deadline
) -> int:
    settings, workers = settings_for(there), WORKERS
    if any(each.joins for each in there):
        workers = 0  # each process would have hashes of its own
    elif _subtracted(query):
        settings = JOINING
    rows = await fetch(
        connection,
        partial(_summed, query, there),
        deadline,
        large=query.large,
        workers=workers,
        settings=settings,
    )
    # never less than none: of a span that is being dropped the parents go first
    return max(0, int(rows[0][0]))


def _summed(query: Query, there: Sequence[Leading]) -> Select[Any]:
    counted = union_all(*(part for leading in there for part in _counted(query, leading)))
    return select(func.sum(counted.subquery().c.matches))


def _subtracted(query: Query) -> OfKey | None:
    """The one condition, where those that do not satisfy it are counted."""
    keys = lacking(query)
    return keys[0] if len(query.conditions) == len(keys) == 1 else None


def _counted(query: Query, leading: Leading) -> list[Select[Any]]:
    """Numbers whose sum is how many match."""
    key = _subtracted(query)
    if key is not None:
        return counts(query, key, leading.scope)
    found, unique = chosen(query, leading)
    rows = (found if unique else found.distinct()).subquery()
    return [select(func.count().label("matches")).select_from(rows)]


__all__ = ["OutOfTime", "count"]
