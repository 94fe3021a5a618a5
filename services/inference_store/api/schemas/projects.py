"""Projects, and the models of one."""

from inference_store.api.shown import Shown
from inference_store.index.registrations import Project

from .fields import ShortText
from .links import PageParameters


class ModelParameters(PageParameters):
    """Which page of which models."""

    project_id: ShortText | None = None
    """Of this project."""


class ShownProject(Shown, of=Project):
    """What registrations name as their project."""

    models: int
    """How many of its models the caller sees."""


class ProjectPage(Shown):
    """Projects, in order of their ids."""

    items: list[ShownProject]
    next: str | None
