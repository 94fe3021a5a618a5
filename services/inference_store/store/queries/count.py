"""How many inferences match, partition by partition."""

from sqlalchemy import func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from .bounded import Deadline, OutOfTime, fetch
from .matching import Query, counted
from .scope import groups, pieces


async def count(connection: AsyncConnection, query: Query, *, deadline: Deadline) -> int:
    """The number of matches. Raises OutOfTime."""
    if query.nothing or query.scope.empty:
        return 0
    parts = await pieces(connection, query.scope, newest_first=True)
    matches = 0
    for group in groups(parts):
        together = union_all(*(counted(query, scope) for scope in group)).subquery()
        statement = select(func.sum(together.c.matches))
        matches += int((await fetch(connection, statement, deadline))[0][0])
    return matches


__all__ = ["OutOfTime", "count"]
