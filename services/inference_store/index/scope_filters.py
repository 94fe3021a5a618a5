"""Matches the rows within a caller's scope, in SQL."""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, any_, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import AccessScope

from .tables import policy_version, registration


def match_registrations(scope: AccessScope) -> ColumnElement[bool]:
    """Match the registrations that are in the scope."""
    here = registration.c
    return and_(
        true(),
        *(
            or_(_among(here.project_id, part.projects), _among(here.model_id, part.models))
            for part in scope.parts
        ),
    )


def match_models(scope: AccessScope, model: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model` (the integer) is a model in the scope."""
    return _match(scope, model, registration.c.model)


def match_model_ids(scope: AccessScope, model_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `model_id` (the text) names a model in the scope."""
    return _match(scope, model_id, registration.c.model_id)


def match_projects(scope: AccessScope, project_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Match the rows whose column `project_id` names a project that is in the scope as a whole."""
    return and_(true(), *(_among(project_id, part.projects) for part in scope.parts))


def match_policies(scope: AccessScope) -> ColumnElement[bool]:
    """Match the versions of policies whose owner is in the scope; the default is in everything."""
    here = policy_version.c
    parts = (
        or_(
            and_(here.level == "model", _among(here.subject, part.models)),
            and_(here.level == "project", _among(here.subject, part.projects)),
        )
        for part in scope.parts
    )
    return and_(true(), *parts)


async def models_of(
    connection: AsyncConnection, projects: Collection[str]
) -> dict[str, frozenset[str]]:
    """Return the ids of the models in these projects."""
    here, ids_by_project = registration.c, defaultdict(set)
    query = select(here.project_id, here.model_id).where(_among(here.project_id, projects))
    for project_id, model_id in await connection.execute(query):
        ids_by_project[project_id].add(model_id)
    return {project_id: frozenset(models) for project_id, models in ids_by_project.items()}


def _match(
    scope: AccessScope, column: ColumnElement[Any], key: ColumnElement[Any]
) -> ColumnElement[bool]:
    within = select(key).where(match_registrations(scope))
    return true() if scope.is_everything else column.in_(within)


def _among(column: ColumnElement[Any], texts: Collection[str]) -> ColumnElement[bool]:
    """Compare with texts as one parameter, however many there are."""
    return column == any_(literal(sorted(texts), ARRAY(Text)))
