"""Projects, and the models of one."""

from inference_store.api.shown import Shown

from .fields import ShortText
from .parameters import PageParameters


class ModelParameters(PageParameters):
    """Which page of which models."""

    project_id: ShortText | None = None
    """Of this project."""


class ShownProject(Shown):
    """What registrations name as their project."""

    project_id: str
    models: int
    """How many of its models the caller sees."""


class ProjectPage(Shown):
    """Projects, in order of their ids."""

    items: list[ShownProject]
    next: str | None
