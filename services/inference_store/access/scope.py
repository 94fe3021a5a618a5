"""The models that something may be done with."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScopePart:
    """The models of these projects, and these models."""

    projects: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class AccessScope:
    """Models that are in all parts; everything if there are no parts."""

    parts: tuple[ScopePart, ...] = ()

    @property
    def is_everything(self) -> bool:
        """True if it is unlimited, and includes what belongs to no model."""
        return not self.parts

    @property
    def is_nothing(self) -> bool:
        """True if it cannot contain a model."""
        return any(not part.projects and not part.models for part in self.parts)

    def __and__(self, other: "AccessScope") -> "AccessScope":
        return AccessScope(tuple(dict.fromkeys((*self.parts, *other.parts))))

    def settled(self, models_of: Mapping[str, frozenset[str]]) -> "AccessScope":
        """Return the scope with the models that its projects have now instead of the projects."""
        nothing: frozenset[str] = frozenset()
        return AccessScope(
            tuple(
                ScopePart(
                    nothing,
                    part.models.union(
                        *(models_of.get(project, nothing) for project in part.projects)
                    ),
                )
                for part in self.parts
            )
        )

    def has(self, model_id: str, project_id: str | None) -> bool:
        """Return whether a model is in the scope."""
        return all(model_id in part.models or project_id in part.projects for part in self.parts)

    def has_project(self, project_id: str | None) -> bool:
        """Return whether every model of a project is in the scope, including future ones."""
        return all(project_id in part.projects for part in self.parts)


EVERYTHING = AccessScope()
