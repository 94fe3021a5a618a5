"""Projects: a project exists if a registration names it."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope

from .scope_filters import match_registrations
from .tables import registration


@dataclass(frozen=True, slots=True)
class Project:
    """A project, with the number of its models in a scope."""

    project_id: str
    models: int


async def listed(
    connection: AsyncConnection,
    *,
    limit: int,
    after: str | None = None,
    within: AccessScope = EVERYTHING,
) -> list[Project]:
    """Return the projects that have models in the scope, in order of their ids, after `after`."""
    here = registration.c
    query = (
        select(here.project_id, func.count().label("models"))
        .where(match_registrations(within), here.project_id.is_not(None))
        .group_by(here.project_id)
        .order_by(here.project_id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(here.project_id > after)
    return [Project(row.project_id, row.models) for row in await connection.execute(query)]
