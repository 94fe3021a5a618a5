"""Which models are asked, and what is asked of each."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.access import EVERYTHING, Reach
from inference_store.store.errors import NotFound
from inference_store.store.queries.ask import Question, prepare
from inference_store.store.queries.matching import Query
from inference_store.store.queries.scope import has_marks
from inference_store.store.registrations import Registration, registration_of
from inference_store.store.tables import registration

from .gather import Target


async def choose(
    connection: AsyncConnection,
    *,
    within: Reach = EVERYTHING,
    project_id: str | None = None,
    model_ids: Sequence[str] | None = None,
) -> list[Registration]:
    """The models within reach, of a project and by these ids where they are given.

    Raises NotFound for a project or an id that is not there, or not within reach.
    """
    query = select(registration).where(within.where).order_by(registration.c.model_id)
    if project_id is not None:
        query = query.where(registration.c.project_id == project_id)
    if model_ids is not None:
        query = query.where(registration.c.model_id.in_(sorted(set(model_ids))))
    found = [registration_of(row) for row in await connection.execute(query)]
    missing = sorted(set(model_ids or ()) - {each.model_id for each in found})
    if missing:
        raise NotFound(f"There is no model {missing[0]!r}.")
    if project_id is not None and not found:
        raise NotFound(f"There is no project {project_id!r}.")
    return found


async def targets(
    connection: AsyncConnection, models: Sequence[Registration], question: Question
) -> tuple[list[Target], Sequence[str]]:
    """The question of each model, and warnings; a name is one that any of the models has.

    Raises UnknownKey, ImpossibleComparison, Invalid, NotKept.
    """
    asked = await prepare(connection, [each.model for each in models], question)
    return [await _target(connection, each, asked.query) for each in models], asked.warnings


async def _target(connection: AsyncConnection, model: Registration, query: Query) -> Target:
    scope = replace(query.scope, model=model.model)
    marks = await has_marks(connection, model.model)
    return Target(model, replace(query, scope=scope, marks=marks))
