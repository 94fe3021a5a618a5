"""The levels of retention policies: model, project, and the whole store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from inference_store.erasure.policies import DEFAULT, Level, Of

from .access import Over
from .paths import ModelId, ProjectId


async def _of_model(model_id: ModelId) -> Of:
    return Of("model", model_id)


async def _of_project(project_id: ProjectId) -> Of:
    return Of("project", project_id)


async def _of_all() -> Of:
    return DEFAULT


@dataclass(frozen=True, slots=True)
class PolicyLevel:
    """A level of policies: its path, whose policy it is, and the extent that a right is needed
    for."""

    level: Level
    path: str
    of: Callable[..., Awaitable[Of]]
    read: Over
    write: Over
    words: str


POLICY_LEVELS: Final = (
    PolicyLevel(
        "model", "/models/{model_id}", _of_model, Over.MODEL, Over.MODEL, "a model's policy"
    ),
    PolicyLevel(
        "project",
        "/projects/{project_id}",
        _of_project,
        Over.PROJECT,
        Over.PROJECT,
        "a project's policy",
    ),
    PolicyLevel("default", "", _of_all, Over.SOME, Over.EVERYTHING, "the default policy"),
)
