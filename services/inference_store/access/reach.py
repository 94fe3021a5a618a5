"""Which models something may be done with."""

from collections.abc import Mapping
from dataclasses import dataclass


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


EVERYTHING = Reach()
