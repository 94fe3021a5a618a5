"""Which models something may be done with: in SQL for lists, in Python for one model."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, true

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
                or_(
                    here.project_id.in_(sorted(part.projects)),
                    here.model_id.in_(sorted(part.models)),
                )
                for part in self.parts
            ),
        )

    def of(self, model: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column `model` (the integer) is of a model in it."""
        return self._among(model, registration.c.model)

    def of_id(self, model_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """The rows whose column `model_id` (the text) names a model in it."""
        return self._among(model_id, registration.c.model_id)

    def _among(self, column: ColumnElement[Any], key: ColumnElement[Any]) -> ColumnElement[bool]:
        return true() if self.is_everything else column.in_(select(key).where(self.where))


EVERYTHING = Reach()
