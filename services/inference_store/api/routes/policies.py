"""Retention policies of a model, of a project, and of all: the same routes three times."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.api import cursors
from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import Database, IfMatch, LedgerOf, Reading, Writing
from inference_store.api.filters import read_filter
from inference_store.api.paths import ModelId, ProjectId
from inference_store.api.policies import allowed, answer, shown, version
from inference_store.api.problems import refusals
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.policies import PolicyBody, PolicyHistory, ShownPolicy
from inference_store.api.schemas.runs import ShownRun
from inference_store.store.access import Action
from inference_store.store.ledger import Body, Note
from inference_store.store.retention import policies, runs
from inference_store.store.retention.policies import DEFAULT, Level, Of, Version
from inference_store.store.rights import Right

Route = TypeVar("Route", bound=Callable[..., Any])
router = APIRouter(route_class=GuardedRoute, tags=["retention"])

_SAVED: Any = {"rules": {"__all__": {"saved"}}}


async def _of_model(model_id: ModelId) -> Of:
    return Of("model", model_id)


async def _of_project(project_id: ProjectId) -> Of:
    return Of("project", project_id)


async def _of_all() -> Of:
    return DEFAULT


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the policies of a level are, whose they are, and what over a right is needed."""

    level: Level
    path: str
    of: Callable[..., Awaitable[Of]]
    read: Over
    write: Over
    words: str


_PLACES = (
    _Place("model", "/models/{model_id}", _of_model, Over.MODEL, Over.MODEL, "a model's policy"),
    _Place(
        "project",
        "/projects/{project_id}",
        _of_project,
        Over.PROJECT,
        Over.PROJECT,
        "a project's policy",
    ),
    _Place("default", "", _of_all, Over.SOME, Over.EVERYTHING, "the default policy"),
)


def _route(
    place: _Place, method: str, action: str, more: str = "", **said: Any
) -> Callable[[Route], Route]:
    over = place.read if said.pop("right") is Right.READ else place.write
    right = Right.READ if method == "GET" else Right.ADMIN
    return router.api_route(
        f"{place.path}/retention-policy{more}",
        methods=[method],
        name=f"{action}_{place.level}_policy",
        openapi_extra=needs(right, over),
        **said,
    )


def _add(place: _Place) -> None:
    """The routes of one level."""

    @_route(
        place,
        "GET",
        "get",
        right=Right.READ,
        response_model=ShownPolicy,
        responses=refusals(404),
        summary=f"Read {place.words}",
    )
    async def get_policy(
        connection: Reading, access: Asking, of: Annotated[Of, Depends(place.of)]
    ) -> Answer:
        """The policy in force, and what waits to begin; 404 where there is neither."""
        await allowed(connection, access, of)
        return await _answer(connection, of)

    @_route(
        place,
        "GET",
        "history_of",
        "/history",
        right=Right.READ,
        response_model=PolicyHistory,
        responses=refusals(404),
        summary=f"Versions of {place.words}",
    )
    async def get_history(
        page: Annotated[PageParameters, Query()],
        connection: Reading,
        access: Asking,
        of: Annotated[Of, Depends(place.of)],
    ) -> Answer:
        """Who set it, when, and what it was before: the newest first."""
        await allowed(connection, access, of)
        before = cursors.after(page.cursor, int)
        found = await policies.history(connection, of, before=before, limit=page.limit + 1)
        items, following = cursors.cut(found, page.limit, lambda each: each.revision)
        standing = await policies.standing(connection, of)
        return Answer({"items": [version(each, standing) for each in items], "next": following})

    @_route(
        place,
        "PUT",
        "set",
        right=Right.ADMIN,
        response_model=ShownPolicy,
        responses=refusals(400, 404, 412, 413, 501),
        summary=f"Set {place.words}",
    )
    async def put_policy(  # noqa: PLR0917  (FastAPI calls it by name)
        body: PolicyBody,
        ledger: LedgerOf,
        engine: Database,
        if_match: IfMatch,
        access: Asking,
        of: Annotated[Of, Depends(place.of)],
    ) -> Answer:
        """Set how long inputs, responses and inferences are kept; it applies to those stored
        already, too."""
        trees = [await read_filter(rule.filter, None) for rule in body.rules]
        warnings: tuple[str, ...] = ()

        async def said(connection: AsyncConnection) -> Body:
            nonlocal warnings
            await allowed(connection, access, of, lock=True)
            resolved = await policies.resolve(connection, of, list(body.asked(trees)), body)
            warnings = resolved.warnings
            return await policies.setting(
                connection, of, resolved.policy, expected=if_match, reason=body.reason
            )

        await ledger.write("policy_set", said, actor=access.who, note=_noted)
        async with engine.connect() as connection:
            return await _answer(connection, of, warnings=warnings)

    @_route(
        place,
        "DELETE",
        "remove",
        right=Right.ADMIN,
        status_code=204,
        response_class=Response,
        responses=refusals(404, 412),
        summary=f"Remove {place.words}",
    )
    async def delete_policy(
        ledger: LedgerOf,
        if_match: IfMatch,
        access: Asking,
        of: Annotated[Of, Depends(place.of)],
    ) -> Response:
        """From now on the next wider policy applies, or everything is kept."""

        async def said(connection: AsyncConnection) -> Body:
            await allowed(connection, access, of, lock=True)
            return await policies.setting(connection, of, None, expected=if_match)

        await ledger.write("policy_removed", said, actor=access.who, note=_noted)
        return Response(status_code=204)


for _each in _PLACES:
    _add(_each)


@router.post(
    "/models/{model_id}/retention-policy/run",
    status_code=202,
    response_model=ShownRun,
    responses=refusals(404),
    openapi_extra=needs(Right.ADMIN),
    summary="Run retention now",
)
async def run_policy(model_id: ModelId, connection: Writing, access: Asking) -> Answer:
    """Ask the retention service to apply what is in force for the model now."""
    registration = await access.model(connection, model_id)
    run = await runs.request(connection, registration.model)
    await access.note(connection, Action.RETENTION_REQUESTED, registration, run=str(run.id))
    body = named(run, "model") | {"model_id": model_id}
    return Answer(body, status_code=202, headers={"Location": f"/v1/retention/runs/{run.id}"})


async def _answer(connection: AsyncConnection, of: Of, *, warnings: tuple[str, ...] = ()) -> Answer:
    body = await shown(connection, of, warnings=warnings)
    standing = await policies.standing(connection, of)
    return answer(body, standing.revision)


def _noted(found: Version) -> Note:
    """What the audit says of it."""
    of, policy = found.of, found.policy
    action = Action.POLICY_REMOVED if policy is None else Action.POLICY_SET
    rules = {} if policy is None else policy.model_dump(exclude_none=True, exclude=_SAVED)
    began = found.effective_at.isoformat()
    told = {"level": of.level, "revision": found.revision, "effective_at": began}
    whose = {"project_id": of.subject} if of.level == "project" else {}
    why = {} if found.reason is None else {"reason": found.reason}
    return Note(action, of.subject if of.level == "model" else None, told | whose | why | rules)
