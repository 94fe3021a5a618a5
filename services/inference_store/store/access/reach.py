"""Which models something may be done with: in SQL for lists, in Python for one model."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, any_, literal, or_, select, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.tables import registration


@dataclass(frozen=True, slots=True)
class Part:
    """The models of these projects, and these models."""

    projects: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class Reach:
    """Models that are in every one of the parts; no part at all: everything."""

    parts: tuple[Part, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Whether it has no bounds: also what belongs to no model."""
        return not self.parts

    @property
    def is_nothing(self) -> bool:
        """Whether no model can be in it."""
        return any(not part.projects and not part.models for part in self.parts)

    def __and__(self, other: "Reach") -> "Reach":
        return Reach(tuple(dict.fromkeys((*self.parts, *other.parts))))

    def settled(self, models_of: Mapping[str, frozenset[str]]) -> "Reach":
        """The same by models alone: those that the projects have now."""
        nothing: frozenset[str] = frozenset()
        return Reach(
            tuple(
                Part(
                    nothing,
                    part.models.union(*(models_of.get(each, nothing) for each in part.projects)),
                )
                for part in self.parts
            )
        )

    def has(self, model_id: str, project_id: str | None) -> bool:
        """Whether a model is in it."""
        return all(model_id in part.models or project_id in part.projects for part in self.parts)

    def has_project(self, project_id: str | None) -> bool:
        """Whether every model of a project is in it, also those to come."""
        return all(project_id in part.projects for part in self.parts)

    @property
    def where(self) -> ColumnElement[bool]:
        """The registrations that are in it."""
        here = registration.c
        return and_(
            true(),
            *(
                or_(_among(here.project_id, part.projects), _among(here.model_id, part.models))
                for part in self.parts
            ),
        )

    def of(self, model: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column `model` (the integer) is of a model in it."""
        return self._among(model, registration.c.model)

    def of_project(self, project_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column `project_id` names a project that is in it as a whole."""
        return and_(true(), *(_among(project_id, part.projects) for part in self.parts))

    def of_id(self, model_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column `model_id` (the text) names a model in it."""
        return self._among(model_id, registration.c.model_id)

    def _among(self, column: ColumnElement[Any], key: ColumnElement[Any]) -> ColumnElement[bool]:
        return true() if self.is_everything else column.in_(select(key).where(self.where))


def _among(column: ColumnElement[Any], texts: Collection[str]) -> ColumnElement[bool]:
    """One parameter, however many there are."""
    return column == any_(literal(sorted(texts), ARRAY(Text)))


EVERYTHING = Reach()


async def models_of(
    connection: AsyncConnection, projects: Collection[str]
) -> dict[str, frozenset[str]]:
    """The ids of the models that are in these projects."""
    here, found = registration.c, defaultdict(set)
    query = select(here.project_id, here.model_id).where(_among(here.project_id, projects))
    for project_id, model_id in await connection.execute(query):
        found[project_id].add(model_id)
    return {project_id: frozenset(models) for project_id, models in found.items()}
