"""How many inferences match, partition by partition."""

from typing import Any

from sqlalchemy import Select, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from .bounded import Deadline, OutOfTime, fetch
from .leading import Leading, chosen, looked_at, settings_for, together
from .matching import Query
from .scope import groups, pieces


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """The number of matches. Raises OutOfTime."""
    if query.nothing or query.scope.empty:
        return 0
    parts = await pieces(connection, query.scope, newest_first=True)
    matches = 0
    for group in groups(parts):
        for there in together(await looked_at(connection, query, group, deadline)):
            counts = union_all(*(_counted(query, leading) for leading in there)).subquery()
            statement = select(func.sum(counts.c.matches))
            rows = await fetch(connection, statement, deadline, settings=settings_for(there))
            matches += int(rows[0][0])
    return matches


def _counted(query: Query, leading: Leading) -> Select[Any]:
    found, unique = chosen(query, leading)
    rows = (found if unique else found.distinct()).subquery()
    return select(func.count().label("matches")).select_from(rows)


__all__ = ["OutOfTime", "count"]
