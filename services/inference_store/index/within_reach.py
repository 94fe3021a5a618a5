"""Which rows are within a caller's reach, in SQL."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, any_, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Reach

from .tables import registration


def match_registrations(reach: Reach) -> ColumnElement[bool]:
    """Match the registrations that are in the reach."""
    here = registration.c
    return and_(
        true(),
        *(
            or_(_among(here.project_id, part.projects), _among(here.model_id, part.models))
            for part in reach.parts
        ),
    )


def match_models(reach: Reach, model: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model` (the integer) is of a model in the reach."""
    return _match(reach, model, registration.c.model)


def match_model_ids(reach: Reach, model_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model_id` (the text) names a model in the reach."""
    return _match(reach, model_id, registration.c.model_id)


def match_projects(reach: Reach, project_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `project_id` names a project that is in the reach as a whole."""
    return and_(true(), *(_among(project_id, part.projects) for part in reach.parts))


async def models_of(
    connection: AsyncConnection, projects: Collection[str]
) -> dict[str, frozenset[str]]:
    """The ids of the models that are in these projects."""
    here, found = registration.c, defaultdict(set)
    query = select(here.project_id, here.model_id).where(_among(here.project_id, projects))
    for project_id, model_id in await connection.execute(query):
        found[project_id].add(model_id)
    return {project_id: frozenset(models) for project_id, models in found.items()}


def _match(
    reach: Reach, column: ColumnElement[Any], key: ColumnElement[Any]
) -> ColumnElement[bool]:
    within = select(key).where(match_registrations(reach))
    return true() if reach.is_everything else column.in_(within)


def _among(column: ColumnElement[Any], texts: Collection[str]) -> ColumnElement[bool]:
    """One parameter, however many there are."""
    return column == any_(literal(sorted(texts), ARRAY(Text)))
