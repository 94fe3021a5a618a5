"""The levels of retention policies: model, project, and the whole store."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Request

from inference_store.access.rights import Right
from inference_store.erasure.policies import DEFAULT, LevelName, PolicyOwner

from .access import Over, needs
from .paths import ModelId, ProjectId

Route = TypeVar("Route", bound=Callable[..., Any])


async def _find_of_model(request: Request, model_id: ModelId) -> None:
    request.state.policy_of = PolicyOwner("model", model_id)


async def _find_of_project(request: Request, project_id: ProjectId) -> None:
    request.state.policy_of = PolicyOwner("project", project_id)


async def _find_default(request: Request) -> None:
    request.state.policy_of = DEFAULT


async def _get_owner(request: Request) -> PolicyOwner:
    owner: PolicyOwner = request.state.policy_of
    return owner


PolicyOf = Annotated[PolicyOwner, Depends(_get_owner)]
"""The owner of the policy that the path of the request names."""


@dataclass(frozen=True, slots=True)
class PolicyLevel:
    """A level of policies: its path, what finds the owner, and the extent that a right is needed
    for."""

    level: LevelName
    path: str
    find: Callable[..., Awaitable[None]]
    read: Over
    write: Over
    words: str


POLICY_LEVELS: Final = (
    PolicyLevel(
        "model", "/models/{model_id}", _find_of_model, Over.MODEL, Over.MODEL, "a model's policy"
    ),
    PolicyLevel(
        "project",
        "/projects/{project_id}",
        _find_of_project,
        Over.PROJECT,
        Over.PROJECT,
        "a project's policy",
    ),
    PolicyLevel("default", "", _find_default, Over.SOME, Over.EVERYTHING, "the default policy"),
)


def add_policy_route(
    router: APIRouter, method: str, action: str, path: str = "", *, summary: str, **options: Any
) -> Callable[[Route], Route]:
    """Add a function as a route of the policies of every level; it takes the owner as a `PolicyOf`.

    `summary` names the level by `{policy}`. A GET needs the right to read, everything else the
    right to administer; so does a preview, which is requested by POST.
    """

    def add(route: Route) -> Route:
        for level in POLICY_LEVELS:
            needed = (
                needs(Right.READ, level.read)
                if method == "GET"
                else needs(Right.ADMIN, level.write)
            )
            router.api_route(
                f"{level.path}/retention-policy{path}",
                methods=[method],
                name=f"{action}_{level.level}_policy",
                summary=summary.format(policy=level.words),
                openapi_extra=needed,
                dependencies=[Depends(level.find)],
                **options,
            )(route)
        return route

    return add
