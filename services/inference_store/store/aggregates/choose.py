"""Which models are asked, and what is asked of each."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.access import EVERYTHING, Reach
from inference_store.store.errors import ImpossibleComparison, NotFound, UnknownKey
from inference_store.store.queries.ask import Question, prepare
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
) -> tuple[list[Target], list[str]]:
    """The question of each model, and warnings.

    A model that cannot be asked this has no matches; raises UnknownKey or ImpossibleComparison
    where that is so of every model.
    """
    found: list[Target] = []
    warnings: list[str] = []
    refused: list[UnknownKey | ImpossibleComparison] = []
    for each in models:
        try:
            asked = await prepare(connection, each.model, question)
        except UnknownKey as exc:
            refused.append(exc)
            lenient = replace(question, unknown_keys="empty")
            asked = await prepare(connection, each.model, lenient)
        except ImpossibleComparison as exc:
            refused.append(exc)
            warnings.append(f"{each.model_id}: {exc.detail}")
            continue
        found.append(Target(each, asked.query))
        warnings += asked.warnings
    if refused and len(refused) == len(models):
        raise refused[0]
    return found, list(dict.fromkeys(warnings))
